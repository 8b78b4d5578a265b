"""Mistakes in the arguments of executors and pools."""

from __future__ import annotations

from gymnast import envs, sandbox

from .answering import Mistake, check_answer, mistakes


@mistakes(
    ("Limits(mem='512m')", "Limits has no 'mem'", "did you mean 'memory'", "max_output"),
    ("Limits(memory='512MB')", "a size is a number of bytes, or text such as '512m'", "got '512MB'"),
    ("Limits(memory=512)", "Limits.memory must be at least 64m", "got 512"),
    ("Limits(cpus='2')", "Limits.cpus must be a number of cores, got str: '2'"),
    ("Limits(cpus=0)", "Limits.cpus must be positive and finite, got 0"),
    ("Limits(pids=1)", "Limits.pids must be at least 16", "got 1"),
    ("Limits(workspace='400m')", "must be at most half of memory=512m", "raise memory or lower them"),
    ("DockerExecutor(memory='1g')", "no 'memory'", "give limits=Limits(memory=...)"),
    ("DockerExecutor(limit=Limits())", "no 'limit'", "did you mean 'limits'"),
    ("DockerExecutor(limits={'memory': '1g'})", "limits must be a Limits", "got dict"),
    ("DockerExecutor('python:3.12')", "takes 0 positional arguments, got 1", "such as image=..."),
    ("DockerExecutor(image=3)", "image must be a name, a Dockerfile's folder as a Path, or a BoxImage, got 3"),
    ("DockerExecutor(env={'A': 1})", "env maps names to values, both of them str, got 'A': 1"),
    ("DockerExecutor(env={'A=B': '1'})", "a name in env", "got 'A=B'"),
    ("DockerExecutor(preload='numpy')", "preload is a list of modules' names", "got 'numpy'"),
    ("DockerExecutor(network=True)", "network must be a name, 'none' for no network, got True"),
    ("DockerExecutor(env=['A=1'])", "env maps names to values, such as {'LANG': 'C'}, got ['A=1']"),
    ("DockerExecutor(files=['x.csv'])", "files maps paths to data, such as {'data.csv': 'a,b'}, got ['x.csv']"),
    ("DockerExecutor(files={'/etc/x': 'a'})", "in the workspace, relative to it, got '/etc/x'"),
    ("DockerExecutor(files={'x': 3})", "files['x'] must be bytes or str, got int: 3"),
    ("DockerExecutor(pull='yes')", "pull must be", "got 'yes'"),
    ("LocalExecutor(timeout=3)", "LocalExecutor has no 'timeout'", "did you mean 'start_timeout'"),
    ("LocalExecutor(cpus=2.0)", "give limits=Limits(cpus=...)"),
    ("ExecutorPool(DockerExecutor, max_boxes=4)", "DockerExecutor()", "got"),
    ("ExecutorPool(DockerExecutor(), size=4)", "ExecutorPool has no 'size'", "it has executor, max_boxes"),
    ("ExecutorPool(DockerExecutor(), max_boxes=0)", "max_boxes must be at least 1, got 0"),
    ("ExecutorPool(DockerExecutor(), max_boxes='4')", "max_boxes must be a whole number, got str: '4'"),
    ("ExecutorPool(DockerExecutor(), max_boxes=2, warm=3)", "warm", "max_boxes", "3"),
    ("asyncio.run(DockerExecutor().python('1'))", "the box is new", "`async with`"),
    ("CodeEnv(DockerExecutor)", "code_executor must be an executor such as DockerExecutor(), or an ExecutorPool"),
    ("CodeEnv('docker')", "code_executor must be an executor such as DockerExecutor()", "got 'docker'"),
    ("CodeEnv(DockerExecutor(), code_timeout='5')", "code_timeout", "got str: '5'"),
    ("CodeEnv(DockerExecutor(), timeout=5)", "CodeEnv has no 'timeout'", "tool_timeout"),
    ("CodeEnv(DockerExecutor(), max_boxes=5)", "max_boxes", "ExecutorPool"),
)
def test_arguments(mistake: Mistake) -> None:
    import asyncio

    check_answer(mistake, sandbox, asyncio=asyncio, CodeEnv=envs.CodeEnv)
