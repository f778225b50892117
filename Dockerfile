# docker build -t precision-bisect .
# docker run --rm --user "$(id -u)" -v "$PWD:/work" precision-bisect model.onnx --tol 1e-2
FROM python:3.11-slim-bookworm
COPY . /source
RUN pip install --no-cache-dir '/source[cpu]' && rm -r /source
USER 65534
WORKDIR /work
ENTRYPOINT ["precision-bisect"]
