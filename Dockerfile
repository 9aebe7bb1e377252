# The program in an image of its own: docs/guide/containers.md explains how to use it.
FROM docker.io/library/rust:1.95-bookworm AS base
RUN cargo install --locked cargo-chef@0.1.78
WORKDIR /src

FROM base AS plan
COPY . .
RUN cargo chef prepare --recipe-path recipe.json

FROM base AS build
# This layer is built again only when a dependency changes.
COPY --from=plan /src/recipe.json .
RUN cargo chef cook --locked --profile dist --package lock-cli --recipe-path recipe.json
COPY . .
RUN cargo build --locked --profile dist -p lock-cli

FROM docker.io/library/debian:12.11-slim
# `docker build --build-arg SOURCE=… --build-arg VERSION=… --build-arg REVISION=$(git rev-parse HEAD) .`
ARG SOURCE=""
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="distlock" \
    org.opencontainers.image.description="Run a command under a distributed lock" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0" \
    org.opencontainers.image.source="$SOURCE" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
RUN useradd --system --uid 10001 --create-home distlock
# What rediss://, etcds:// and the like trust by default. The package would bring openssl.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/target/dist/distlock /usr/local/bin/
USER 10001
WORKDIR /home/distlock
ENTRYPOINT ["distlock"]
