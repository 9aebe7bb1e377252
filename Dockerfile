# The program in an image of its own: docs/guide/containers.md says how to use it.
FROM docker.io/library/rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist -p lock-cli

FROM docker.io/library/debian:bookworm-slim
RUN useradd --system --uid 10001 --create-home distlock
# What rediss://, etcds:// and the like trust by default. The package would bring openssl.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /src/target/dist/distlock /usr/local/bin/
USER 10001
WORKDIR /home/distlock
ENTRYPOINT ["distlock"]
