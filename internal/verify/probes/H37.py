desc = P['marker'].encode() + b'\0'
USER_KEYRING = -4
if P['leave']:
    r = raw('add_key', b'user\0', desc, b'secret\0', 6, USER_KEYRING)
    notes.append('add_key: ' + ('stored' if r > 0 else name(-r)))
    data['stored'] = r > 0
else:
    r = raw('keyctl', 10, USER_KEYRING, b'user\0', desc, 0)   # KEYCTL_SEARCH
    notes.append('search: ' + ('found' if r > 0 else name(-r)))
    if r > 0:
        raw('keyctl', 9, r, USER_KEYRING)                     # KEYCTL_UNLINK
        bad.append('finds the key')
