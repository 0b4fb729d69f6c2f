# Uses a token on a socket as code does. Without parameters it tells its own.
import socket, struct
def call(path, token):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(5)
    s.connect(path)
    raw = json.dumps({'token': token, 'op': 'result', 'value': 'replayed'}).encode()
    s.sendall(struct.pack('>I', len(raw)) + raw)
    head = s.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise OSError(errno.ECONNRESET, '')
    answer = json.loads(s.recv(struct.unpack('>I', head)[0], socket.MSG_WAITALL))
    if 'error' in answer and answer['error']:
        raise OSError(errno.EACCES, '')
mine, own = os.environ['WORKBENCH_SOCKET'], os.environ['WORKBENCH_TOKEN']
data['socket'], data['token'] = mine, own
if P.get('token'):
    reaches('the ended run\'s token on its socket', lambda: call(P['socket'], P['token']))
    reaches('the ended run\'s token on another run\'s socket', lambda: call(mine, P['token']))
    reaches('no token', lambda: call(mine, ''))
else:
    call(mine, own)   # it works while the run lives
    notes.append('works while the run lives')
