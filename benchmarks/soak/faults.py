"""The programs that the soak's episodes run in their boxes: some well-behaved, most not."""

PYTHON = {
    "value": "6 * 7",
    "state": "x = [0] * 1000; len(x)",
    "exception": "1 / 0",
    "exit": "import sys; sys.exit(4)",
    "loop": "while True: pass",
    "stubborn": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "big power": "(10**8)**(10**7)",
    "os._exit": "import os; os._exit(3)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "closed": "import os; os.closerange(0, 300)",
    "memory": "x = bytearray(1 << 30)",
    "children": "import subprocess; [subprocess.Popen(['sleep', '100']) for _ in range(20)]",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork": "import os; os.fork(); 1",
    "daemon": "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "flood": "import os\nfor _ in range(2000): os.write(1, b'x' * 65536)",
    "garbage": "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'\\xff' * 5000)\n    except OSError: pass",
    "disk": "open('full', 'wb').write(bytes(1 << 26))",
    "files": "for n in range(20000): open(f'f{n}', 'w')",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(1), print('late'))).start()",
    "kill all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "surrogates": "print('\\udcff\\x00\\x1b[31m')",
}
BASH = {
    "echo": "echo hello",
    "exit": "exit 3",
    "kill": "kill -9 $$",
    "errexit": "set -e; false",
    "loop": "while :; do :; done",
    "sleep": "sleep 100",
    "background": "sleep 100 &",
    "quote": "echo 'unclosed",
    "yes": "yes | head -c 20000000",
    "fork bomb": ":(){ :|:& };:",
}

# Whether the variable of "state" and the files of the others exist.
TRACES = "'x' in globals(), __import__('os').listdir()"
