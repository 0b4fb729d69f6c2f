"""The helper library for asyncio: workbench.aio.

    receipt = await workbench.aio.call("your_app.lookup", {"query": "1234"})
    all = await asyncio.gather(*[workbench.aio.ai.classify(t, labels) for t in texts])

A call is under way from when it is made, and completes also where nobody awaits
it. It needs no loop that runs: two threads send and take the answers of all that is
asked with one request, and what takes several has threads of its own. A program that
ends waits for them.

Whoever calls may be interrupted anywhere, by a handler of a signal too. So it takes no
lock, and does no more than put what it wants into a queue.
"""

import _thread
import atexit
import collections
import collections.abc
import functools
import json
import os
import queue
import re
import sys
import threading
import traceback

import workbench
from workbench_calls import _Ask

__all__ = ["call", "receipt", "tools", "ai", "web", "packages", "fetch"]

PARALLEL = 8  # calls at once; more wait here

_left = set()  # outcomes that are not known yet


def _all(take):
    """What take gives until there is no more."""
    while True:
        try:
            item = take()
        except (IndexError, queue.Empty):
            return
        yield item


class _Outcome:
    """What becomes of a call: a value or an error, once."""

    def __init__(self):
        self.known = None  # both
        self.listeners = collections.deque()

    def end(self, value=None, error=None):
        self.known = (value, error)
        _left.discard(self)
        self.tell()

    def listen(self, listener):
        self.listeners.append(listener)
        if self.known:
            self.tell()

    def tell(self):
        for listener in _all(self.listeners.popleft):
            listener(*self.known)

    def wait(self):
        """Waits until it is known."""
        lock = _thread.allocate_lock()
        lock.acquire()
        self.listen(lambda *_: lock.release())
        lock.acquire()


class _Line:
    """What a run or a cell asks, over one connection that carries it at once."""

    def __init__(self, whose):
        self.whose = whose
        self.queue = queue.SimpleQueue()  # of what is asked and its outcome; None is the end
        self.begun = False
        self.serving = _thread.allocate_lock()  # held by whoever sends

        # Of the threads alone:
        self.changed = threading.Condition()  # guards what is below, but for the sender's
        self.connection = None
        self.asked = {}  # what was sent and has no answer, by its number
        self.number = 0  # the sender's
        self.alone = False  # likewise: no thread reads

    def submit(self, ask):
        outcome = _Outcome()
        self.queue.put((ask, outcome))
        _expect(outcome)
        self.begin()
        return outcome

    def begin(self):
        """Has a thread serve the queue. One too many ends at once."""
        if self.begun:
            return
        try:
            _thread.start_new_thread(self.serve, ())
        except RuntimeError:  # no more threads
            self.serve(lingers=False)
        else:
            self.begun = True

    def serve(self, lingers=True):
        if not self.serving.acquire(blocking=False):
            return
        together = []  # what is sent next, in one go
        try:
            while True:
                try:
                    item = self.queue.get(block=lingers and not together)
                except queue.Empty:
                    if not together:
                        return
                    self.flush(together)
                    continue
                if item is None:
                    self.flush(together)
                    return
                if len(self.asked) >= PARALLEL:
                    self.flush(together)
                    with self.changed:
                        self.changed.wait_for(lambda: len(self.asked) < PARALLEL)
                self.ask(together, lingers, *item)
        finally:
            self.begun = False  # what is asked later has another
            self.serving.release()

    def ask(self, together, lingers, ask, outcome):
        for _ in range(2):
            if self.connection is None:
                together.clear()  # that has failed with the one before
                try:
                    self.connect(lingers)
                except OSError as e:
                    outcome.end(error=workbench.WorkbenchError("unavailable", "the sandbox's broker cannot be reached: %s" % e))
                    return
            with self.changed:
                if self.connection is not None:
                    self.number += 1
                    self.asked[self.number] = (ask, outcome)
                    together.append(workbench._numbered(ask.body, self.number))
                    return
        outcome.end(error=workbench.WorkbenchError("unavailable", "the sandbox's broker ended the connection"))

    def connect(self, lingers):
        connection = workbench._connection(self.whose)
        self.connection, self.alone = connection, not lingers
        if lingers:
            try:
                _thread.start_new_thread(self.read, (connection,))
            except RuntimeError:
                self.alone = True

    def flush(self, together):
        connection = self.connection
        if together and connection is not None:
            try:
                connection.sendall(b"".join(together))
            except OSError:  # whoever reads finds the end
                if self.alone:
                    self.end(connection)
            except BaseException:  # in a thread of the program's: half a request may have left
                self.end(connection)
                raise
            else:
                if self.alone:
                    self.read(connection)
        together.clear()

    def read(self, connection):
        """Takes answers until there are no more: of an only thread, to what was asked."""
        raw = b""
        try:
            while self.asked or not self.alone:
                part = connection.recv(65536)
                if not part:
                    break
                raw += part
                came = []  # whoever waits is told once all of it was read, and has the interpreter then
                try:
                    while len(raw) >= 4:
                        size = int.from_bytes(raw[:4], "big")
                        if size > workbench._MAX_ANSWER:
                            raise ValueError("an answer of %d bytes" % size)
                        if len(raw) < 4 + size:
                            break
                        came.append(self.take(raw[4:4 + size]))
                        raw = raw[4 + size:]
                finally:
                    self.tell(came)
        except (OSError, LookupError, ValueError):  # it was closed, or is no broker's
            pass
        finally:
            self.end(connection)

    def take(self, raw):
        number = re.match(rb'{"n":(\d+)', raw)  # apart: Python need not be able to read the rest
        if not number:
            raise ValueError("an answer to nothing")
        with self.changed:
            ask, outcome = self.asked.pop(int(number[1]))
            self.changed.notify_all()
        try:
            value = ask.shape(workbench._answer(json.loads(raw)))
        except Exception as e:  # also what Python cannot read, such as too long a number
            known = None, e
        else:
            known = value, None
        return outcome, known

    def tell(self, came):
        for outcome, known in came:
            try:
                outcome.end(*known)
            except Exception:  # of a loop of the program's own
                traceback.print_exc()

    def end(self, connection):
        """Fails what has no answer from a connection, which is over."""
        with self.changed:
            if self.connection is not connection:
                return
            self.connection = None
            left = [outcome for _, outcome in self.asked.values()]
            self.asked.clear()
            self.changed.notify_all()
        connection.close()
        for outcome in left:
            outcome.end(error=workbench.WorkbenchError("unavailable", "the sandbox's broker ended the call",
                                                       "it may have been carried out: look before you repeat it"))

    def take_back(self):
        """Takes back what has not begun."""
        for _ in _all(self.queue.get_nowait):
            pass
        self.queue.put(None)


class _Threads:
    """They do what takes several requests."""

    queue = queue.SimpleQueue()  # of work and its outcome
    changed = threading.Lock()  # of the threads alone; guards running
    running = 0
    age = 0  # grows when what is under way has become nobody's

    @classmethod
    def submit(cls, work):
        outcome = _Outcome()
        cls.queue.put((work, outcome))
        _expect(outcome)
        cls.begin()
        return outcome

    @classmethod
    def begin(cls):
        if cls.running >= PARALLEL or cls.queue.empty():
            return
        try:
            _thread.start_new_thread(cls.serve, ())
        except RuntimeError:  # no more threads: others will come to it, or there are none
            if not cls.running:
                cls.serve()

    @classmethod
    def serve(cls):
        while not cls.queue.empty():
            with cls.changed:
                if cls.running >= PARALLEL:
                    return
                cls.running += 1
            try:
                for work, outcome in _all(cls.queue.get_nowait):
                    try:
                        known = work(), None
                    except BaseException as e:
                        known = None, e
                    outcome.end(*known)
            finally:
                with cls.changed:
                    cls.running -= 1


_lines = {}  # by whose they are; all but one are over


def _submit(work):
    if not isinstance(work, _Ask):
        return _Threads.submit(work)
    whose = workbench._whose()
    line = _lines.get(whose)
    if line is None:
        for old in list(_lines):  # of cells that are over, or about to end
            line = _lines.pop(old, None)
            if line is not None:
                line.queue.put(None)
                line.begin()  # or what is in the queue would stay there
        line = _lines.setdefault(whose, _Line(whose))
    return line.submit(work)


def _expect(outcome):
    _left.add(outcome)
    if outcome.known:
        _left.discard(outcome)


def _forget():
    """In a child that was forked: what is under way is its parent's."""
    for line in _lines.values():
        if line.connection is not None:
            line.connection.close()
    _lines.clear()
    _left.clear()
    _Threads.queue = queue.SimpleQueue()
    _Threads.changed = threading.Lock()
    _Threads.running = 0
    _Waiters.of.clear()


os.register_at_fork(after_in_child=_forget)


def settle():
    """Waits until no call is under way."""
    for line in list(_lines.values()):
        if not line.queue.empty():
            line.begin()
    _Threads.begin()
    while _left:
        for outcome in list(_left):
            outcome.wait()


_ends = False


def _end():
    global _ends
    _ends = True
    settle()


atexit.register(_end)


def abandon():
    """Makes what is under way nobody's, and takes back what has not begun: the
    cell that asked for it is over."""
    for line in list(_lines.values()):
        line.take_back()
    _lines.clear()
    for _ in _all(_Threads.queue.get_nowait):
        pass
    _Threads.age += 1
    _left.clear()


class _Waiters:
    """Those who await something in a loop: it is told at once of all that came."""

    of = {}  # what came, by loop

    def __init__(self, loop):
        self.loop = loop
        self.came = collections.deque()
        self.told = False  # the loop is, and has not taken it yet

    @classmethod
    def bring(cls, loop, thread, waiter, value, error):
        if thread == threading.get_ident():
            cls.give(waiter, value, error)
            return
        mine = cls.of.get(loop)
        if mine is None:
            for other in list(cls.of):
                if other.is_closed():
                    cls.of.pop(other, None)
            mine = cls.of.setdefault(loop, cls(loop))
        mine.came.append((waiter, value, error))
        if mine.told:
            return
        mine.told = True
        try:
            loop.call_soon_threadsafe(mine.take)
        except BaseException as e:
            mine.told = False
            if not isinstance(e, RuntimeError):  # it was closed
                raise
            cls.of.pop(loop, None)

    def take(self):
        self.told = False  # before: what comes from here on is told of
        for one in _all(self.came.popleft):
            self.give(*one)

    @staticmethod
    def give(waiter, value, error):
        if waiter.done():  # nobody waits any more
            return
        if error is None:
            waiter.set_result(value)
        else:
            waiter.set_exception(error)


class Call(collections.abc.Coroutine):
    """A call that is under way. It can be awaited once, like any coroutine; to give
    up waiting does not take it back."""

    _awaited = _outcome = None

    def __init__(self, work):
        self._age = _Threads.age
        self._outcome = _submit(work)
        if _ends:  # nobody will wait for it
            self._outcome.wait()

    async def _wait(self):
        import asyncio
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()  # to give up waiting gives up this one alone
        self._outcome.listen(functools.partial(_Waiters.bring, loop, threading.get_ident(), waiter))
        return await waiter

    def _begin(self):
        if self._awaited is None:
            self._awaited = self._wait()
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
        if self._awaited is None and self._outcome is not None:
            self._outcome.listen(functools.partial(_tell, self._age))


def _tell(age, _, error):
    """Says that a call failed of which nobody else will hear."""
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
