# Built in one stage, run in another: no compiler, no pip cache and no source tree in what is shipped.
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
COPY requirements/runtime.txt requirements/runtime.txt
RUN pip install --quiet --only-binary :all: --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md ./
COPY core core
COPY app app
COPY migrations migrations
RUN pip install --quiet --no-deps --no-build-isolation . \
 # Layers keep whole seconds only, and both byte code and compiled kernels are checked against the time of their source.
 && find /opt/venv -name '*.py' -exec touch --date=2026-01-01T00:00:00Z {} + \
 && python -m compileall -q /opt/venv/lib
# Kernels compiled now are found on the first start by every machine with this processor; others compile their own.
WORKDIR /tmp
RUN mkdir -p /data/numba && NUMBA_CACHE_DIR=/data/numba python -c "from sklearn.datasets import load_digits; \
    from core.dataset import LabelledData; from core.pipeline import train; \
    train(LabelledData.from_arrays(*load_digits(return_X_y=True)))"

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="STMS" \
      org.opencontainers.image.description="Single-teacher multi-student classification as a service"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin stms
COPY --from=build /opt/venv /opt/venv
COPY --from=build --chown=10001:10001 /data /data
# /data is the one place that is written to (besides /tmp): mount a volume there and the root may be read-only.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    STMS_DATA_DIR=/data/stms NUMBA_CACHE_DIR=/data/numba
USER 10001:10001
WORKDIR /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["stms", "ping"]
ENTRYPOINT ["stms"]
CMD ["serve"]
