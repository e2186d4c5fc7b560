#!/usr/bin/env bash
# Regenerates autopar/ir/program_pb2.py and .pyi from program.proto. Run it after a change of the
# file. The version of grpcio-tools is fixed because generated code runs on its own and newer
# protobuf runtimes only: this one's loads on every protobuf that setup.py admits.
#
#   GRPC_TOOLS_PYTHON   a Python with grpcio-tools 1.64.3; by default a fresh environment is made
set -euo pipefail
cd "$(dirname "$0")/.."

python=${GRPC_TOOLS_PYTHON:-}
if [ -z "$python" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    python3 -m venv "$folder"
    python=$folder/bin/python
    "$python" -m pip install --quiet grpcio-tools==1.64.3 "setuptools<81"
fi

"$python" -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. autopar/ir/program.proto
# The generator leaves the type arguments of Mapping out.
sed -i '1i # mypy: disable-error-code="type-arg"' autopar/ir/program_pb2.pyi
