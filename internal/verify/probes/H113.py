import random, uuid, hashlib
data['values'] = {
    'urandom': os.urandom(16).hex(), 'random': str(random.getrandbits(128)), 'uuid': str(uuid.uuid4()), 'hash': str(hash('canary')),
    'boot': (readable('/proc/sys/kernel/random/uuid') or b'').decode().strip(), 'token': os.environ.get('WORKBENCH_TOKEN', ''),
    'address': hashlib.sha256((readable('/proc/self/auxv', 4096) or b'')).hexdigest(),
}
data["values"] = {k: v for k, v in data["values"].items() if v}
