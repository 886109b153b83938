"""Waits for a late peer: in a plain function, in a thread, below a generator, a constructor, a callback from C."""
import ctypes
import socket
import sys
import threading
import time


def receive(connection):
    connection.sendall(b"request!")
    return connection.recv(8)


def recurse(connection, depth):
    if depth == 0:
        return receive(connection)
    return recurse(connection, depth - 1)


def produce(connection):
    while True:
        yield receive(connection)


def pull(connection):
    for reply in produce(connection):
        return reply


class Client:
    def __init__(self, connection):
        self.reply = receive(connection)


def construct(connection):
    # Often enough for the interpreter to specialise the call.
    return Client(connection)


def compare(connection):
    def key(_value):
        return receive(connection)

    return sorted([1], key=key)


def call_back(connection):
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

    def called(_value):
        receive(connection)
        return 0

    return prototype(called)(1)


def run(name, function, connection, results, *arguments):
    began = time.monotonic_ns()
    function(connection, *arguments)
    results[name] = time.monotonic_ns() - began


def main():
    port, rounds = int(sys.argv[1]), int(sys.argv[2])
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    print("ready", flush=True)
    sys.stdin.readline()
    results = {}
    thread = threading.Thread(target=run, args=("thread", receive, connections[1], results), name="worker")
    thread.start()
    for _ in range(rounds):
        run("plain", receive, connections[0], results)
        run("deep", recurse, connections[0], results, 3)
        run("generator", pull, connections[0], results)
        run("construct", construct, connections[0], results)
        run("sorted", compare, connections[0], results)
        run("callback", call_back, connections[0], results)
    thread.join()
    print("done", *(f"{name}={ns}" for name, ns in results.items()), flush=True)
    sys.stdin.readline()


main()
