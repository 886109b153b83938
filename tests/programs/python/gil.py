"""One thread computes and never gives the interpreter's lock away by itself; the other comes back from short sleeps."""
import sys
import threading
import time

stop = False


def compute():
    value = 0
    while not stop:
        value += 1


def main():
    global stop
    sys.setswitchinterval(0.05)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic_ns()
    thread = threading.Thread(target=compute)
    thread.start()
    waited = 0
    for _ in range(int(sys.argv[1])):
        began = time.monotonic_ns()
        time.sleep(0.001)
        waited += time.monotonic_ns() - began
    stop = True
    thread.join()
    print(f"done waited={waited} whole={time.monotonic_ns() - start}", flush=True)
    sys.stdin.readline()


main()
