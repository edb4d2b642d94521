# The first stage puts the finished root together; the second ships that root alone, so that installers, the caches and
# what was cut out are gone and not merely hidden under another layer.
#   docker build --tag stms .
# Any base with Debian and Python 3.11 or newer will do; to pin one for good, name its digest:
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:… --tag stms .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS root
# What is installed: runtime; oidc for a server that accepts tokens of issuers; grpc for one with a port for gRPC;
# objects for a service that keeps large blobs in an object store; images for one that takes pictures, encoders for one
# that runs own encoders, too;
# serving for `stms api` alone, which answers queries and neither reads data sets nor trains.
ARG LOCK=runtime
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_PYTHON=/opt/venv/bin/python3
WORKDIR /src
COPY requirements/${LOCK}.txt requirements/lock.txt
COPY deploy/container/trim.py deploy/container/trim.py
# C tools do not stay: strip, and the compiler of what queries have in C (app/serving, core/packed). A Python of Debian's
# has its headers in a package of their own.
# hadolint ignore=DL3008
RUN apt-get update -qq \
 && headers=$(python3 -c "import sysconfig; print(sysconfig.get_path('include'))") \
 && if [ -e "$headers/Python.h" ]; then set -- ; else set -- libpython3-dev; fi \
 && apt-get install -y -qq --no-install-recommends binutils gcc libc6-dev "$@" >/dev/null \
 && python3 -m venv --without-pip /opt/venv \
 && pip install --quiet --no-compile --only-binary :all: --require-hashes -r requirements/lock.txt \
 && python3 -B deploy/container/trim.py /opt/venv
COPY deploy/container/clean.sh deploy/container/warm.py deploy/container/
COPY pyproject.toml README.md ./
COPY core core
COPY app app
COPY stms stms
COPY stms_client stms_client
COPY migrations migrations
# Compiled kernels are checked against the time and size of their source. Layers keep whole seconds only, and a new
# build must have a new time: a volume may still hold kernels of the last one.
RUN pip install --quiet --no-compile --no-deps --no-build-isolation . \
 && /opt/venv/bin/python3 -P -B -c "from stms.app.serving import _row_decoder; from stms.core.packed import _text_terms, _tree_walks" \
 && apt-get purge -y -qq --auto-remove binutils gcc libc6-dev libpython3-dev >/dev/null \
 && find /opt/venv -path '*/site-packages/stms/core/*' -name '*.py' -exec touch --date="$(date --utc +%Y-%m-%dT%H:%M:%SZ)" {} + \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin stms \
 && sh deploy/container/clean.sh
# One run of the main job leaves the byte code of those modules that the service loads, the standard library's among
# them, and the compiled kernels: they are found on the first start by machines with this processor, others compile their own.
# For serving there is no job: the modules are loaded without it.
ENV PATH=/opt/venv/bin:$PATH PYTHONPYCACHEPREFIX=/opt/bytecode NUMBA_CACHE_DIR=/data/numba
# The commands create files that only their own user reads; byte code is for all.
RUN mkdir -p /data && python3 deploy/container/warm.py && chmod -R a+rX /opt/bytecode && rm -rf /src /tmp/*

FROM scratch
# hadolint ignore=DL3067
COPY --from=root / /
# /data is the one place that is written to (besides /tmp): mount a volume there and the root may be read-only.
RUN chown -R 10001:10001 /data
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPYCACHEPREFIX=/opt/bytecode \
    STMS_DATA_DIR=/data/stms NUMBA_CACHE_DIR=/data/numba
USER 10001:10001
WORKDIR /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# Whatever the container runs: the server's readiness, the worker's heartbeat, or both.
HEALTHCHECK --interval=30s --timeout=30s --start-period=60s --retries=3 CMD ["stms", "ping", "--container"]
ENTRYPOINT ["stms"]
CMD ["serve"]
ARG VERSION=1.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="STMS" \
      org.opencontainers.image.description="Single-teacher multi-student classification as a service" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
