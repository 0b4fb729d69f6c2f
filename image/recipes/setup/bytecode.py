"""Make every compiled Python file independent of its source's time stamp.

A .pyc normally records the time of its .py and is ignored when the two differ.
The root's times are not part of what an image is, so the files are turned into
hash-based ones that are not checked (PEP 552): the image is read-only, the
source cannot change. Sources without a compiled file get one.
"""

import importlib.util
import os
import py_compile
import struct
import sys
from _imp import source_hash

COMPILE = ["/usr/lib/python3", "/usr/lib/python3.%d" % sys.version_info[1], "/usr/local/lib"]
CONVERT = ["/usr/share"]  # holds a few modules; only what is compiled already counts
UNCHECKED = struct.pack("<I", 0b01)  # flags: by hash, not checked against the source
MAGIC = importlib.util.MAGIC_NUMBER
KEY = int.from_bytes(MAGIC, "little")


def convert(source, pyc):
    with open(pyc, "r+b") as f:
        header = f.read(16)
        if len(header) < 16 or header[:4] != MAGIC or header[4:8] == UNCHECKED:
            return
        with open(source, "rb") as s:
            digest = source_hash(KEY, s.read())
        f.seek(4)
        f.write(UNCHECKED + digest)


def main():
    for root in COMPILE + CONVERT:
        for folder, _, files in os.walk(root):
            for name in files:
                if not name.endswith(".py"):
                    continue
                source = os.path.join(folder, name)
                pyc = importlib.util.cache_from_source(source)
                if os.path.exists(pyc):
                    convert(source, pyc)
                elif root in COMPILE:
                    # Templates and test data need not be valid: quiet, no error.
                    py_compile.compile(source, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


main()
