# An image for CPUs in which both commands of the README run:
#
#   docker build -t turnwise .
#   docker run --rm turnwise
#   docker run --rm turnwise pytest
#
# The sandbox in the container uses Landlock. bubblewrap, which isolates more, also needs
# `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`. Runs are written to
# /turnwise/runs: mount a folder there to keep them.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

# Torch's build for CPUs has a tenth of the size of the build for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /turnwise
COPY pyproject.toml LICENSE README.md ./
RUN pip install --index-url "$TORCH_INDEX" "$(python -c \
    'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
print(next(d for d in p["dependencies"] if d.startswith("torch")))')"

# Some packages of the tests are built from source.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN pip install -e '.[test]' \
    && useradd --create-home turnwise \
    && mkdir -p runs \
    && chown -R turnwise /turnwise

USER turnwise
CMD ["python", "-m", "rl.train", "env=code-sandbox"]
