"""Make every compiled Python file independent of its source's time stamp.

A .pyc normally records the time of its .py and is ignored when the two differ.
The root's times are not part of what an image is, so the files are turned into
hash-based ones that are not checked (PEP 552): the image is read-only, the
source cannot change. Sources without a compiled file get one.
"""

import compileall
import importlib.util
import os
import struct
import sys
from py_compile import PycInvalidationMode
from _imp import source_hash

ROOTS = ["/usr/lib/python3", "/usr/lib/python3.%d" % sys.version_info[1],
         "/usr/local/lib", "/usr/share"]
UNCHECKED = 0b01  # flags: hash-based, not checked against the source
MAGIC = importlib.util.MAGIC_NUMBER
KEY = int.from_bytes(MAGIC, "little")


def convert(pyc):
    source = importlib.util.source_from_cache(pyc)
    with open(pyc, "r+b") as f:
        header = f.read(16)
        if len(header) < 16 or header[:4] != MAGIC or not os.path.exists(source):
            return
        with open(source, "rb") as s:
            digest = source_hash(KEY, s.read())
        f.seek(4)
        f.write(struct.pack("<I", UNCHECKED) + digest)


def main():
    # /usr/share holds a few modules too; only what is compiled there already
    # is converted.
    for root in ROOTS[:3]:
        if os.path.isdir(root):
            compileall.compile_dir(root, maxlevels=20, quiet=2,
                                   invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    for root in ROOTS:
        for folder, _, files in os.walk(root):
            if os.path.basename(folder) != "__pycache__":
                continue
            for name in files:
                if name.endswith(".%s.pyc" % sys.implementation.cache_tag):
                    convert(os.path.join(folder, name))


main()
