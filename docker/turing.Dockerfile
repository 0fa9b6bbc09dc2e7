# UNVERIFIED: nobody has built this whole file or run its image on a card yet. All stages but the one called "fork" were
# built on a plain Ubuntu 24.04 with stand-ins for CUDA and the fork; "fork" was written from the fork's own build files,
# and only its download of sources has been tried, against repositories made for the test.
#
# The Turing fork of vLLM (github.com/weicj/vLLM-2080Ti-Definitive, line 0.1.x, on vLLM 0.21.0) for cards of capability 7.5
# such as the RTX 2080 Ti: built from one commit with gcc-12, in an environment of its own, the doctor in another.
# `vllm-doctor build --target turing-fork` fills in the arguments; the defaults are those of docker/pins.json. By hand:
#
#   vllm-doctor build --target turing-fork --print
#
# Fetched while building: github.com (the fork, FlashQLA, CUTLASS, Triton, Python), pypi.org, download.pytorch.org.
# There is no lock of the fork's Python packages: it pins torch, Triton's and FlashInfer's versions itself, and not the
# rest. What a build took is kept in /opt/vllm-doctor/python-lock.txt (versions) and sources.txt (commits).
# No "syntax" line: it would pull a frontend from a registry, and everything here works with Docker 20.10.
ARG BASE=docker.io/nvidia/cuda:12.8.1-devel-ubuntu24.04@sha256:4b9ed5fa8361736996499f64ecebf25d4ec37ff56e4d11323ccde10aa36e0c43

# ---------------------------------------------------------------- system packages: exact versions, compared hashes
# gcc-12 and g++-12 both: gcc-12 alone makes the fork's launcher choose a compiler without cc1plus. nvcc stays in the
# image, because FlashQLA and FlashInfer compile at the first request.
FROM ${BASE} AS system
ARG APT_LOCK=docker/locks/apt-ubuntu-24.04.txt
RUN --mount=type=bind,source=docker/install-apt,target=/run/install-apt \
    --mount=type=bind,source=docker/locks,target=/docker/locks \
    sh /run/install-apt "/${APT_LOCK}"
# The user exists before anything belongs to it. Ubuntu's image has a user 1000 of its own, which nothing uses.
RUN export SOURCE_DATE_EPOCH=0; \
    other=$(getent passwd 1000 | cut -d: -f1); \
    if [ -n "$other" ]; then userdel "$other" && rm -rf "/home/$other"; fi; \
    useradd --uid 1000 --user-group --create-home --no-log-init --shell /bin/bash doctor \
    && install -d -o doctor -g doctor /cache \
    && rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
# The toolkit's driver stub is for linking only; at run time the driver that the host lends comes first.
ENV CUDA_HOME=/usr/local/cuda CUDA_PATH=/usr/local/cuda CUDACXX=/usr/local/cuda/bin/nvcc \
    LIBRARY_PATH=/usr/local/cuda/lib64/stubs \
    CC=/usr/bin/gcc-12 CXX=/usr/bin/g++-12 CUDAHOSTCXX=/usr/bin/g++-12 NVCC_CCBIN=/usr/bin/g++-12 \
    TORCH_CUDA_ARCH_LIST=7.5 FLASHINFER_ENABLE_AOT=1

# ---------------------------------------------------------------- what builds the fork, and is not in the image
FROM system AS tools
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
# uv by version and hash: it holds the hash of the Python that it fetches, and knows torch's index for CUDA 12.8.
# (The uv of the fork's own container recipe, 0.5.31, is older than UV_TORCH_BACKEND and ignores it.)
ARG UV_VERSION=0.13.9
ARG UV_SHA256=d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19
RUN --mount=type=bind,source=docker/install-python,target=/run/install-python \
    --mount=type=bind,source=docker/wheels,target=/docker/wheels \
    --mount=type=secret,id=ca \
    python3.12 -m venv /opt/uv \
    && printf 'uv==%s --hash=sha256:%s\n' "$UV_VERSION" "$UV_SHA256" >/opt/uv/lock.txt \
    && sh /run/install-python /opt/uv/lock.txt /opt/uv

# ---------------------------------------------------------------- the fork, where it will be used: it is installed editable
FROM tools AS fork
ARG PYTHON=3.11
ARG PYTHON_PATCH=18
# On the fork's default branch at the beginning of September 2026, with the changes of its release 0.1.17.
ARG FORK_REPOSITORY=https://github.com/weicj/vLLM-2080Ti-Definitive.git
ARG FORK_COMMIT=4d676458714f1c291cca6ae9ccc0c6d7ecb1e8be
# The commit of the fork's own container recipe.
ARG FLASHQLA_REPOSITORY=https://github.com/weicj/FlashQLA-SM70-SM75.git
ARG FLASHQLA_COMMIT=3ab27d77d8ca01d7a4718903b726add1a8886c0e
# Compilers at once. Empty: one for each 3 GiB of memory beyond 3 GiB, at most 8 and at most one a thread.
ARG MAX_JOBS=
ENV PATH=/opt/uv/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    UV_TORCH_BACKEND=cu128 UV_PYTHON_INSTALL_DIR=/opt/python UV_PYTHON_PREFERENCE=only-managed UV_NO_CACHE=1
RUN --mount=type=bind,source=docker/install-turing,target=/run/install-turing \
    --mount=type=secret,id=ca \
    sh /run/install-turing sources
RUN --mount=type=bind,source=docker/install-turing,target=/run/install-turing \
    --mount=type=secret,id=ca \
    sh /run/install-turing packages
RUN --mount=type=bind,source=docker/install-turing,target=/run/install-turing \
    --mount=type=secret,id=ca \
    sh /run/install-turing compile

# ---------------------------------------------------------------- the doctor, in an environment of its own
FROM system AS doctor
RUN python3.12 -m venv /opt/doctor
RUN --mount=type=bind,source=docker/install-python,target=/run/install-python \
    --mount=type=bind,source=docker/locks,target=/docker/locks \
    --mount=type=bind,source=docker/wheels,target=/docker/wheels \
    --mount=type=secret,id=ca \
    sh /run/install-python /docker/locks/doctor-3.12.txt /opt/doctor
COPY pyproject.toml README.md LICENSE /src/
COPY docker /src/docker
COPY doctor /src/doctor
RUN set -eu; export SOURCE_DATE_EPOCH=315532800 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore; \
    cd /src; \
    /opt/doctor/bin/pip wheel -q --no-cache-dir --no-deps --no-index --no-build-isolation -w /tmp/wheel /src; \
    /opt/doctor/bin/pip install -q --no-cache-dir --no-deps --no-index --no-compile /tmp/wheel/*.whl; \
    PYTHONHASHSEED=0 /opt/doctor/bin/python -m compileall -f -q --invalidation-mode unchecked-hash \
        /opt/doctor/lib >/dev/null || true; \
    install -D -m 0755 docker/entrypoint /opt/vllm-doctor/entrypoint; \
    install -m 0755 docker/health /opt/vllm-doctor/health; \
    ln -s /opt/doctor/bin/vllm-doctor /usr/local/bin/vllm-doctor; \
    rm -rf /src /tmp/wheel

# ---------------------------------------------------------------- the labels' facts, the proof
FROM doctor AS proof
ARG VLLM=0.21.0
ARG TORCH=2.11.0
ARG CUDA=12.8
ARG REVISION
ARG PLAN_ID
ENV PATH=/opt/vllm-turing/.venv/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# A build that would not work does not become an image: this writes proof.json, or the build ends here.
RUN --mount=type=bind,from=fork,source=/opt/python,target=/opt/python \
    --mount=type=bind,from=fork,source=/opt/vllm-turing,target=/opt/vllm-turing \
    set -eu; \
    cp /opt/vllm-turing/.vllm-doctor/python-lock.txt /opt/vllm-turing/.vllm-doctor/sources.txt /opt/vllm-doctor/; \
    printf '{"vllm": "%s", "torch": "%s", "cuda": "%s", "lock_hash": "", "revision": "%s", "plan_id": "%s"}\n' \
        "$VLLM" "$TORCH" "$CUDA" "${REVISION:-}" "${PLAN_ID:-}" >/opt/vllm-doctor/image.json; \
    /opt/doctor/bin/python -m doctor.image.sbom --lock /opt/vllm-doctor/python-lock.txt \
        --dpkg /var/lib/dpkg/status --image /opt/vllm-doctor/image.json --out /opt/vllm-doctor/sbom.cdx.json; \
    HOME=/tmp/proof XDG_CACHE_HOME=/tmp/proof VLLM_CACHE_ROOT=/tmp/proof PYTHONDONTWRITEBYTECODE=1 \
        /opt/doctor/bin/python -m doctor.image.prove_fork /opt/vllm-doctor /opt/vllm-turing/.venv; \
    rm -rf /tmp/* /root/.cache /root/.triton /root/.config

# ---------------------------------------------------------------- the image
FROM system AS runtime
ARG VLLM=0.21.0
ARG TORCH=2.11.0
ARG CUDA=12.8
ARG REVISION
ARG PLAN_ID
# proof.json is what makes this stage wait for the proof
COPY --from=proof /opt/vllm-doctor /opt/vllm-doctor
COPY --from=doctor /opt/doctor /opt/doctor
COPY --from=fork /opt/python /opt/python
COPY --from=fork /opt/vllm-turing /opt/vllm-turing
# the fork's launcher keeps its state and its logs beside itself
RUN ln -s /opt/doctor/bin/vllm-doctor /usr/local/bin/vllm-doctor \
    && install -d -o doctor -g doctor /opt/vllm-turing/run-logs
# GPU_DEVICES and TP_SIZE are the launcher's: with one card it would else take two, "0,1".
ENV PATH=/opt/vllm-turing/.venv/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/opt/vllm-turing/.venv \
    PYTHONUNBUFFERED=1 \
    LANG=C.UTF-8 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_DEVICE_ORDER=PCI_BUS_ID \
    GPU_DEVICES=0 TP_SIZE=1 \
    FLASHQLA_DIR=/opt/vllm-turing/.deps/FlashQLA-SM70-SM75 \
    FLASHQLA_ROOT=/opt/vllm-turing/.deps/FlashQLA-SM70-SM75 \
    HF_HOME=/cache/huggingface \
    XDG_CACHE_HOME=/cache \
    VLLM_CACHE_ROOT=/cache/vllm \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TORCH_EXTENSIONS_DIR=/cache/torch-extensions \
    FLASHINFER_WORKSPACE_BASE=/cache \
    VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
LABEL org.opencontainers.image.title="vllm-doctor, Turing fork" \
    org.opencontainers.image.description="The Turing fork of vLLM for cards of capability 7.5, with a doctor. Unverified" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="https://github.com/vllm-env-doctor/vllm-env-doctor" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.version="${VLLM}-cu${CUDA}-turing" \
    io.vllm-doctor.vllm="${VLLM}" \
    io.vllm-doctor.torch="${TORCH}" \
    io.vllm-doctor.cuda="${CUDA}" \
    io.vllm-doctor.plan="${PLAN_ID}"
VOLUME /cache
EXPOSE 8000
USER doctor
WORKDIR /home/doctor
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m --retries=3 CMD ["/opt/vllm-doctor/health"]
# tini takes the children that vLLM leaves behind, and hands signals on to the whole group
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "/opt/vllm-doctor/entrypoint"]
