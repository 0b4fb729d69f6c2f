"""The helper library for asyncio: workbench.aio.

    receipt = await workbench.aio.call("your_app.lookup", {"query": "1234"})
    all = await asyncio.gather(*[workbench.aio.ai.classify(t, labels) for t in texts])

A call is under way from when it is made, and completes also where nobody awaits
it. It needs no loop that runs: threads make the calls, which end when there are
none.
"""

import collections
import collections.abc
import functools
import os
import sys
import threading
from concurrent.futures import Future

import workbench

__all__ = ["call", "receipt", "tools", "ai", "web", "packages", "fetch"]

PARALLEL = 8  # calls at once; more wait here


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

    @classmethod
    def forget(cls):
        """In a child that was forked: the threads are its parent's."""
        cls.changed = threading.Condition()
        cls.queue.clear()
        cls.running = 0


os.register_at_fork(after_in_child=_Threads.forget)


def settle():
    """Waits until no call is under way."""
    with _Threads.changed:
        _Threads.changed.wait_for(lambda: not _Threads.running)


def abandon():
    """Makes what is under way nobody's, and takes back what has not begun: the
    cell that asked for it is over."""
    with _Threads.changed:
        _Threads.queue.clear()
        _Threads.age += 1


class Call(collections.abc.Coroutine):
    """A call that is under way. It can be awaited once, like any coroutine; to give
    up waiting does not take it back."""

    def __init__(self, work):
        self._awaited = None
        self._age = _Threads.age
        self._future = _Threads.submit(work)

    async def _outcome(self):
        import asyncio
        return await asyncio.shield(asyncio.wrap_future(self._future))

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
