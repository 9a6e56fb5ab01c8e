"""Trains with data-loader workers. Argument: how they start, "fork" or "spawn".

Some are started before the first step, others in each step, and those of step 5 are terminated.
"""

import multiprocessing
import sys
import time


def load(queue):
    queue.put(1.0)


def never_ends():
    time.sleep(100)


def main():
    import jax
    import jax.numpy as jnp

    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    train_step = jax.jit(lambda w, b: w * 0.99 + b)
    w = jnp.ones((64, 64))
    for step in range(10):
        worker = context.Process(target=load, args=(queue,))
        worker.start()
        w = train_step(w, queue.get(timeout=60))
        worker.join()
        print(step, worker.exitcode, flush=True)
        if step == 5:
            slow = context.Process(target=never_ends)
            slow.start()
            slow.terminate()
            slow.join()
            print("terminated", slow.exitcode, flush=True)
    print("trained to the end")


if __name__ == "__main__":
    main()
