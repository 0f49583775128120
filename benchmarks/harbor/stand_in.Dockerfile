# Stand-in for python:3.x and ubuntu images, where no registry can be reached. Debian 12, Python 3.11.
# public_tasks.py says how to build it. The build needs a Debian mirror and PyPI; its containers do not.
FROM turnwise-base:bookworm
COPY debian.sources /etc/apt/sources.list.d/debian.sources
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_BREAK_SYSTEM_PACKAGES=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
RUN rm -f /etc/apt/sources.list && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bash ca-certificates curl git jq sqlite3 tmux asciinema python3 python3-pip python3-venv \
        python-is-python3 python3-pytest
# After the package ca-certificates, which writes this file.
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN pip install --no-cache-dir pytest==8.4.1 pytest-json-ctrf==0.3.5 uv
# Tests fetch uv from the network and then call it. Here uv and the usual packages are in the image.
ENV UV_PYTHON_DOWNLOADS=never
RUN mkdir -p /root/.local/bin && touch /root/.local/bin/env \
    && uvx --with pytest==8.4.1 --with pytest-json-ctrf==0.3.5 pytest --version \
    && uv run --no-project --with pytest pytest --version
ENV UV_OFFLINE=1
