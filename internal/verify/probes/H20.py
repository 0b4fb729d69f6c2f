# Random bytes without newlines on both streams, and what was written.
import hashlib
out, err = hashlib.sha256(), hashlib.sha256()
for _ in range(P['blocks']):
    a, b = os.urandom(61_001), os.urandom(7_919)
    for fd, block, h in ((1, a, out), (2, b, err)):
        block = block.replace(b'\n', b'\0')
        h.update(block)
        left = memoryview(block)
        while left:
            left = left[os.write(fd, left):]
data['stdout'], data['stderr'] = out.hexdigest(), err.hexdigest()
