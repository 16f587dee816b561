"""Dockerfiles for CPU and CUDA, built from the checkout: the same steps, another torch.

torch's wheels bring the CUDA libraries with them and the host brings the driver, so that both images begin with the same
Python. Versions are arguments of the build; they default to those of this machine, on which the run was tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from finpod.deploy.cluster import installed
from finpod.deploy.kuberay import USER
from finpod.errors import InputError

INDEX = {False: "https://download.pytorch.org/whl/cpu", True: "https://pypi.org/simple"}
"""Where torch comes from: its CPU builds have an index of their own, those on PyPI are for CUDA. By `cuda`."""
VERSION = re.compile(r"\d+(\.\d+){1,2}(\w+)?")
NVIDIA = """# the container toolkit of the host puts the driver in
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
"""
TEXT = """\
# finpod on {kind}. In the folder with pyproject.toml:
#   docker build -t {tag} -f THIS_FILE .
ARG PYTHON_VERSION={python}

FROM python:${{PYTHON_VERSION}}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY finpod finpod
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${{PYTHON_VERSION}}-slim
ARG TORCH_VERSION={torch}
ARG TORCH_INDEX={index}
ARG RAY_VERSION={ray}
ENV PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
{nvidia}# KubeRay asks with wget whether a pod is well; torch.compile asks for a compiler
RUN apt-get update \\
 && apt-get install --yes --no-install-recommends g++ wget \\
 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --index-url "${{TORCH_INDEX}}" "torch==${{TORCH_VERSION}}"
COPY constraints.txt /wheels/constraints.txt
COPY --from=wheel /wheels/ /wheels/
# torch and ray are the arguments' to choose, the rest is as it was tried
RUN sed -i -E '/^(torch|ray)==/d' /wheels/constraints.txt \\
 && pip install --no-cache-dir -c /wheels/constraints.txt /wheels/*.whl "ray[default]==${{RAY_VERSION}}" "torch==${{TORCH_VERSION}}"
RUN useradd --create-home --uid {user} --user-group finpod
USER {user}
WORKDIR /home/finpod
{copies}CMD ["finpod", "--help"]
"""


def dockerfile(
    *,
    cuda: bool = False,
    python: str | None = None,
    torch: str | None = None,
    ray: str | None = None,
    copies: Sequence[str] = (),
) -> str:
    """The text of a Dockerfile; its context is the checkout.

    Versions are those of this machine where they are None. `copies` are files and folders of the checkout, such as
    data/nasdaq100 or strategies, that lie in the image under the same names. Raises InputError for a version that cannot
    be, a package that is not here to take the version from, and a path that leads out of the checkout, the current folder,
    or to nothing in it.
    """
    versions = {
        "python": python or f"{sys.version_info.major}.{sys.version_info.minor}",
        "torch": torch or installed("torch"),
        "ray": ray or installed("ray"),
    }
    for name, given in versions.items():
        if not VERSION.fullmatch(given):
            raise InputError(f"{name} {given!r} is no version; give it as in 3.12 or 2.13.0")
    lines = [f"COPY --chown={USER}:{USER} {_within(path)} {_within(path)}\n" for path in copies]
    kind = "CUDA" if cuda else "CPU"
    return TEXT.format(
        kind=kind,
        tag=f"finpod:{kind.lower()}",
        index=INDEX[cuda],
        nvidia=NVIDIA if cuda else "",
        user=USER,
        copies="".join(lines),
        **versions,
    )


def _within(path: str) -> str:
    """The path, if it leads to something in the checkout and needs no quoting."""
    plain = PurePosixPath(path)
    if not re.fullmatch(r"[\w./-]+", path) or plain.is_absolute() or ".." in plain.parts or str(plain) == ".":
        raise InputError(f"{path!r} cannot be copied; give a path in the checkout, such as data/nasdaq100")
    if not Path(plain).exists():
        raise InputError(f"{path!r} cannot be copied, for it is not here; make it, or go to the checkout it lies in")
    return str(plain)
