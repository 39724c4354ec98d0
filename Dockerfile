# syntax=docker/dockerfile:1
# The gateway in a container:
#
#   docker build -t foveate .
#   docker run -p 8090:8090 -v foveate:/data -e ANTHROPIC_API_KEY foveate
#
# The data (FOVEATE_HOME) is in the volume /data; a foveate.yaml in it is the configuration.
#
# Packages are installed by the hashes of the lock files. The base image is named by a tag, so that a build has
# its latest security fixes. To pin it by its digest, as a release should:
#
#   docker build --build-arg PYTHON_IMAGE="$(python3 tools/image_digest.py)" -t foveate .

ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Wheels alone: what is built from source would fetch its build tools without hashes. wordllama has none for Linux on
# ARM (November 2026), so there the image is built with `--platform linux/amd64`.
COPY requirements-build.lock requirements-runtime.lock ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements-build.lock
RUN python -m venv /opt/foveate \
    && /opt/foveate/bin/pip install --require-hashes --only-binary :all: -r requirements-runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir wheel . \
    && /opt/foveate/bin/pip install --no-deps --no-index wheel/foveate-*.whl \
    && /opt/foveate/bin/pip check \
    && /opt/foveate/bin/python -m compileall -q /opt/foveate/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="foveate" \
      org.opencontainers.image.description="Decides what goes into a language model's context window, and what that costs." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --create-home --home-dir /data foveate
COPY --from=build /opt/foveate /opt/foveate
ENV PATH=/opt/foveate/bin:$PATH \
    FOVEATE_HOME=/data \
    PYTHONUNBUFFERED=1
USER foveate
WORKDIR /data
VOLUME /data
EXPOSE 8090
# /health answers as long as the process does; whether requests should come here is what /ready says.
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8090/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["foveate"]
CMD ["serve", "--host", "0.0.0.0"]
