"""The helper library for asyncio: workbench.aio.

    receipt = await workbench.aio.call("your_app.lookup", {"query": "1234"})
    all = await asyncio.gather(*[workbench.aio.ai.classify(t, labels) for t in texts])

A call is under way from when it is made, and completes also where nobody awaits
it. It needs no loop that runs: one thread takes the answers to all that is asked
with one request, and what takes several has threads of its own. A program that ends
waits for them.
"""

import atexit
import collections
import collections.abc
import contextlib
import functools
import json
import os
import socket
import sys
import threading
from concurrent.futures import Future

import workbench
from workbench_calls import _Ask

__all__ = ["call", "receipt", "tools", "ai", "web", "packages", "fetch"]

PARALLEL = 8  # calls at once; more wait here


class _Line:
    """One connection that carries calls at once, and its reader."""

    def __init__(self):
        self.changed = threading.Condition()  # guards what is below
        self.queue = collections.deque()  # of what is asked and its future
        self.asked = {}  # what was sent, by its number
        self.number = 0
        self.connection = None
        self.whose = None  # the run's, or the cell's
        self.sending = threading.Lock()
        self.loop = None  # that will send what waits

    def submit(self, ask):
        future = Future()
        with self.changed:
            self.queue.append((ask, future))
            begins = self.whose is None
            if begins:
                self.whose = workbench._whose()
        if begins:
            self.begin()
        loop = self.asked and _running_loop()
        if not loop:
            self.send()
        elif loop is not self.loop:  # what is asked in one go is sent in one
            self.loop = loop
            loop.call_soon(self.send_soon)
        return future

    def send_soon(self):
        self.loop = None
        self.send()

    def begin(self):
        try:
            self.connection = workbench._connection(self.whose)
            threading.Thread(target=self.read, name="workbench", daemon=True).start()
        except OSError as e:
            self.end("the sandbox's broker cannot be reached: %s" % e)
        except RuntimeError:  # no more threads
            self.send()
            self.read(lingers=False)

    def send(self, wait=True):
        """Sends what may be sent. Whoever reads does not wait for others that do: the
        broker may be waiting until an answer is taken."""
        if not self.sending.acquire(blocking=wait):
            return
        try:
            while True:
                together = []
                with self.changed:
                    while self.queue and len(self.asked) < PARALLEL and self.connection is not None:
                        ask, future = self.queue.popleft()
                        self.number += 1
                        self.asked[self.number] = (ask, future)
                        together.append(workbench._numbered(ask.body, self.number))
                    connection = self.connection
                if not together:
                    return
                try:
                    connection.sendall(b"".join(together))
                except OSError:
                    return  # whoever reads finds the end
                except BaseException:  # an interrupt: half a request may have left
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                    raise
        finally:
            self.sending.release()

    def read(self, lingers=True):
        raw = b""
        while True:
            with self.changed:
                busy = self.asked or self.queue
                if not busy:
                    self.changed.notify_all()
            if self.queue:
                self.send(wait=not self.asked)
            elif not busy and not lingers:
                break
            try:
                part = self.connection.recv(65536)
            except OSError:
                break
            raw += part
            while len(raw) >= 4 and len(raw) >= 4 + (size := int.from_bytes(raw[:4], "big")):
                self.take(json.loads(raw[4:4 + size]))
                raw = raw[4 + size:]
            if not part or len(raw) >= 4 and size > workbench._MAX_ANSWER:
                break
        self.end("the sandbox's broker ended the call")

    def take(self, answer):
        with self.changed:
            ask, future = self.asked.pop(answer["n"])
        try:
            value = ask.shape(workbench._answer(answer))
        except Exception as e:
            future.set_exception(e)
        else:
            future.set_result(value)

    def end(self, why):
        """Fails what has no answer yet."""
        with self.changed:
            left = [future for _, future in [*self.asked.values(), *self.queue]]
            self.asked.clear()
            self.queue.clear()
            if self.connection is not None:
                self.connection.close()
            self.connection = self.whose = None
            self.changed.notify_all()
        for future in left:
            future.set_exception(workbench.WorkbenchError("unavailable", why))


def _running_loop():
    asyncio = sys.modules.get("asyncio")
    return asyncio and asyncio._get_running_loop()


class _Threads:
    changed = threading.Condition()  # guards what is below
    queue = collections.deque()  # of work and its future
    running = 0
    age = 0  # grows when what is under way has become nobody's

    @classmethod
    def submit(cls, work):
        future = Future()
        with cls.changed:
            cls.queue.append((work, future))
            if cls.running >= PARALLEL:
                return future
            cls.running += 1
        try:
            threading.Thread(target=cls.serve, name="workbench", daemon=False).start()
        except RuntimeError:  # no more threads: others will come to it, or there are none
            with cls.changed:
                alone = cls.running == 1
                if not alone:
                    cls.running -= 1
            if alone:
                cls.serve()
        return future

    @classmethod
    def serve(cls):
        while True:
            with cls.changed:
                if not cls.queue:
                    cls.end()
                    return
                work, future = cls.queue.popleft()
            try:
                value = work()
            except BaseException as e:
                future.set_exception(e)
                if not isinstance(e, Exception):
                    with cls.changed:
                        cls.end()
                    raise
            else:
                future.set_result(value)

    @classmethod
    def end(cls):
        cls.running -= 1
        cls.changed.notify_all()


_line = _Line()


def _submit(work):
    global _line
    if not isinstance(work, _Ask):
        return _Threads.submit(work)
    if _line.whose not in (None, workbench._whose()):  # that of a cell that is over, or about to end
        _line = _Line()
    return _line.submit(work)


def _forget():
    """In a child that was forked: what is under way is its parent's."""
    global _line
    if _line.connection is not None:
        _line.connection.close()
    _line = _Line()
    _Threads.changed = threading.Condition()
    _Threads.queue.clear()
    _Threads.running = 0
    _Outcomes.lock = threading.Lock()
    _Outcomes.of.clear()


os.register_at_fork(after_in_child=_forget)


def settle():
    """Waits until no call is under way."""
    _line.send()
    with _line.changed:
        _line.changed.wait_for(lambda: not _line.asked and not _line.queue)
    with _Threads.changed:
        _Threads.changed.wait_for(lambda: not _Threads.running)


atexit.register(settle)


def abandon():
    """Makes what is under way nobody's, and takes back what has not begun: the
    cell that asked for it is over."""
    global _line
    with _line.changed:
        _line.queue.clear()
    _line = _Line()
    with _Threads.changed:
        _Threads.queue.clear()
        _Threads.age += 1


class _Outcomes:
    """What loops have to be told: those that come together, at once."""
    lock = threading.Lock()
    of = {}  # waiters and their futures, by loop

    @classmethod
    def bring(cls, loop, waiter, future):
        with cls.lock:
            mine = cls.of.setdefault(loop, [])
            mine.append((waiter, future))
            if len(mine) > 1:
                return
        try:
            loop.call_soon_threadsafe(cls.take, loop)
        except RuntimeError:  # it was closed
            with cls.lock:
                cls.of.pop(loop, None)

    @classmethod
    def take(cls, loop):
        with cls.lock:
            mine = cls.of.pop(loop, ())
        for waiter, future in mine:
            if waiter.done():  # nobody waits any more
                continue
            error = future.exception()
            if error is None:
                waiter.set_result(future.result())
            else:
                waiter.set_exception(error)


class Call(collections.abc.Coroutine):
    """A call that is under way. It can be awaited once, like any coroutine; to give
    up waiting does not take it back."""

    def __init__(self, work):
        self._awaited = None
        self._age = _Threads.age
        self._future = _submit(work)

    async def _outcome(self):
        import asyncio
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()  # to give up waiting gives up this one alone
        self._future.add_done_callback(functools.partial(_Outcomes.bring, loop, waiter))
        return await waiter

    def _begin(self):
        if self._awaited is None:
            self._awaited = self._outcome()
        return self._awaited

    def __await__(self):
        return self._begin().__await__()

    def send(self, value):
        return self._begin().send(value)

    def throw(self, *error):
        return self._begin().throw(*error)

    def close(self):
        if self._awaited is not None:
            self._awaited.close()

    def __del__(self):
        if self._awaited is None:
            self._future.add_done_callback(functools.partial(_tell, self._age))


def _tell(age, future):
    """Says that a call failed of which nobody else will hear."""
    error = future.exception()
    if error is not None and age == _Threads.age:
        print("workbench: a call that nobody awaited failed: %s" % error, file=sys.stderr)


def _eager(operation):
    @functools.wraps(operation)
    def begin(*args, **kwargs):
        return Call(operation.prepare(*args, **kwargs))

    del begin.prepare
    return begin


call = _eager(workbench.call)
receipt = _eager(workbench.receipt)
fetch = _eager(workbench.fetch)


class packages:
    """Packages from the registries that this server asks."""

    install = staticmethod(_eager(workbench.packages.install))


class tools:
    """The tools that this session may call."""

    search = staticmethod(_eager(workbench.tools.search))
    schema = staticmethod(_eager(workbench.tools.schema))


class ai:
    """Asks the model of this server."""

    complete = staticmethod(_eager(workbench.ai.complete))
    summarise = summarize = staticmethod(_eager(workbench.ai.summarise))
    classify = staticmethod(_eager(workbench.ai.classify))
    extract = staticmethod(_eager(workbench.ai.extract))


class web:
    """Looks for pages in the web."""

    search = staticmethod(_eager(workbench.web.search))
