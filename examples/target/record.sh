#!/bin/sh
# Records the session of README.md: here the search, on the "board" a shell and trtexec alone.
#
#     sh record.sh /path/to/trtexec > session.txt
#
# The board's part runs as another user (board) in a folder of its own, with nothing else in PATH
# than the system's. trtexec may be the stand-in of the tests, which builds with TensorRT-RTX and
# computes with ONNX Runtime.
set -eu
trtexec=${1:?trtexec}
example=$(cd "$(dirname "$0")/../nafnet" && pwd)
there=$(mktemp -d)
chmod 755 "$there"
cd "$there"
cp -r "$example/nafnet.onnx" "$example/inputs" .

shown() {
    printf '%s $ %s\n' "$1" "$2"
}

shown host "precision-bisect nafnet.onnx --tol 1e-2 --inputs inputs --out run"
precision-bisect nafnet.onnx --tol 1e-2 --inputs inputs --out run 2>/dev/null | sed -n 2,13p
shown host "precision-bisect target run --write to_board"
precision-bisect target run --write to_board
shown host "scp -r to_board board:"
mkdir board
cp -r to_board board/
chown -R board board
shown board "sh to_board/judge.sh"
(cd board && su board -s /bin/sh -c "env -i PATH=/usr/bin:/bin TRTEXEC=$trtexec sh to_board/judge.sh")
shown host "scp -r board:to_board from_board"
cp -r board/to_board from_board
shown host "precision-bisect target run --read from_board"
precision-bisect target run --read from_board
rm -rf "$there"
