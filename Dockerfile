# syntax=docker/dockerfile:1
# The gateway in a container:
#
#   docker build -t foveate .
#   docker run -p 8090:8090 -v foveate:/data -e ANTHROPIC_API_KEY foveate
#
# The data (FOVEATE_HOME) is in the volume /data; a foveate.yaml in it is the configuration.

FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/foveate
COPY pyproject.toml README.md LICENSE requirements.lock ./
# What the lock pins also pins what is built here; the groups for tests and benchmarks are left out.
RUN sed -e 's/ \\$//' -e '/^ *--hash/d' -e '/^ *#/d' requirements.lock > constraints.txt
COPY src ./src
RUN /opt/foveate/bin/pip install --constraint constraints.txt . \
    && /opt/foveate/bin/python -m compileall -q /opt/foveate/lib

FROM python:3.12-slim
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
