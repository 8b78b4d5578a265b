// Browsers refuse workers on pages that come from a file. The search of the theme needs one, so here it runs in a hidden
// frame: a frame has the `message` events and the `postMessage` of a worker. The name tells the theme not to load its own
// replacement from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      this.loaded = new Promise(resolve => { script.onload = resolve })
      script.src = new URL(url, location.href).href
      frame.contentDocument.head.appendChild(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
