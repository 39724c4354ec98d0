# syntax=docker/dockerfile:1
# Runs the gateway in a container:
#
#   docker build -t foveate .
#   docker run -p 127.0.0.1:8090:8090 -v foveate:/data foveate
#
# The volume /data is the data folder (FOVEATE_HOME). Put your configuration there as foveate.yaml.
#
# Packages are installed from lock files with hashes. The base image is referenced by a tag, so that a build gets
# the latest security fixes. For a release, pin it by its digest:
#
#   docker build --build-arg PYTHON_IMAGE="$(python3 tools/image_digest.py)" -t foveate .

ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Only wheels, because a source build would download its build tools without hashes.
COPY requirements-build.lock requirements-runtime.lock ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements-build.lock
RUN python -m venv /opt/foveate \
    && /opt/foveate/bin/pip install --require-hashes --only-binary :all: -r requirements-runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir wheel . \
    && /opt/foveate/bin/pip install --no-deps --no-index wheel/foveate-*.whl \
    && /opt/foveate/bin/pip check

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="foveate" \
      org.opencontainers.image.description="Controls what goes into a language model's context window, and what it costs." \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT"
RUN groupadd --gid 10001 foveate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data foveate \
    && install --directory --owner foveate --group foveate --mode 700 /data
COPY --from=build /opt/foveate /opt/foveate
ENV PATH=/opt/foveate/bin:$PATH \
    FOVEATE_HOME=/data \
    PYTHONUNBUFFERED=1
# By number: Kubernetes cannot tell whether a name is root (runAsNonRoot).
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8090
# /health responds as long as the process runs. /ready reports whether the gateway should receive requests.
# http.client uses no proxy, whatever variables the container has.
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection as C; c = C('127.0.0.1', 8090, timeout=4); c.request('GET', '/health'); exit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["foveate"]
# The same port as in the health check, whatever the configuration says.
CMD ["serve", "--host", "0.0.0.0", "--port", "8090"]
