"""Connections of urllib3 that another thread can shut, which wakes the thread that waits for their bytes."""

import contextlib
import socket
import threading
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


class Connections:
    """The connections that one thread opens for one file."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._pools: list[urllib3.PoolManager] = []
        self._lock = threading.Lock()
        self.are_shut = False

    def pool(self, url: str) -> urllib3.PoolManager:
        """Return a pool of its own for a request to `url`, through the proxy that the environment names for it."""
        address = urlsplit(url)
        bypass = urllib.request.proxy_bypass(address.hostname or "")
        proxy = None if bypass else urllib.request.getproxies().get(address.scheme)
        credentials = urllib3.util.parse_url(proxy).auth if proxy else None
        headers = urllib3.make_headers(proxy_basic_auth=credentials) if credentials else None
        pool = urllib3.ProxyManager(proxy, proxy_headers=headers) if proxy else urllib3.PoolManager()
        pool.pool_classes_by_scheme = _pool_classes(self)
        self._pools.append(pool)
        return pool

    def add(self, opened: socket.socket) -> None:
        """Remember a socket; shut it at once after `shut`."""
        with self._lock:
            self._sockets.append(opened.dup())  # TLS takes the original over
        if self.are_shut:
            self.shut()

    def shut(self) -> None:
        """End all connections, present and future: who reads from one sees its end."""
        with self._lock:
            self.are_shut = True
            for duplicate in self._sockets:
                with contextlib.suppress(OSError):  # the server was faster
                    duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release everything."""
        for pool in self._pools:
            pool.clear()
        with self._lock:
            for duplicate in self._sockets:
                duplicate.close()
            self._sockets.clear()


def _pool_classes(connections: Connections) -> dict[str, Any]:
    """Return urllib3's pool classes by scheme, which add each new socket to `connections`."""

    class Http(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            opened = super()._new_conn()
            connections.add(opened)
            return opened

    class Https(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            opened = super()._new_conn()
            connections.add(opened)
            return opened

    class HttpPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Http

    class HttpsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Https

    return {"http": HttpPool, "https": HttpsPool}
