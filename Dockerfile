# fastimg for a machine with an NVIDIA GPU; docs/quickstart.md explains it.
#
#     docker build -t fastimg .
#     docker run --rm --gpus all --ipc host fastimg fastimg demo
#
# torch's wheels bring CUDA's libraries, so the base needs no toolkit. build-essential and python3-dev are for Triton,
# which compiles the augmentation's kernels at run time.
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

RUN apt-get update && \
    apt-get install -y --no-install-recommends build-essential python3-dev python3-venv && \
    rm -rf /var/lib/apt/lists/*

ENV PATH=/opt/fastimg/.venv/bin:/opt/uv/bin:$PATH
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv

# The exact versions that the tests passed with, and the tools that the tests need.
WORKDIR /opt/fastimg
COPY . .
RUN uv sync --no-cache --compile-bytecode --extra export --extra remote --extra text --extra tune

WORKDIR /work
CMD ["fastimg", "doctor"]
