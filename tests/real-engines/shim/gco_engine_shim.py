"""What vLLM needs to hand KV over on a small machine without an accelerator; loaded by vLLM itself as a general plug-in.

Nothing of vLLM's files is changed. Each of these is to be looked at again when vLLM's version changes (requirements.lock):

* MooncakeConnector asks torch which accelerator it runs on, and torch looks for a driver. There is one memory: device 0.
* Between engine core and worker, a ping that tells of a message can be lost, and whoever waits then sleeps for seconds at a
  time. Seen as requests that take 10 to 35 s once they wait for KV. Here no such sleep is longer than 5 ms.
* With few cores an engine that has nothing to compute but waits for KV spins and takes the core from the engine it waits
  for. Here it pauses 10 ms after a step without work, and readers of the message queue stop spinning after 20 ms.
"""

import time

LONGEST_SLEEP_MILLISECONDS = 5
SPIN_SECONDS = 0.02
IDLE_PAUSE_SECONDS = 0.01


def register():
    import torch

    if torch.cuda.is_available():
        return
    torch.accelerator.current_device_index = lambda: 0
    shorten_sleeps()
    pause_when_idle()


def shorten_sleeps():
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    original_init, original_wait = SpinCondition.__init__, SpinCondition.wait

    def init(self, *arguments, **named):
        original_init(self, *arguments, **named)
        if self.is_reader:
            self.busy_loop_s = SPIN_SECONDS

    def wait(self, timeout_ms=None):
        longest = LONGEST_SLEEP_MILLISECONDS
        return original_wait(self, longest if timeout_ms is None else min(timeout_ms, longest))

    SpinCondition.__init__, SpinCondition.wait = init, wait


def pause_when_idle():
    from vllm.v1.engine.core import EngineCoreProc

    original_step = EngineCoreProc._process_engine_step

    def step(self):
        has_computed = original_step(self)
        if not has_computed:
            time.sleep(IDLE_PAUSE_SECONDS)
        return has_computed

    EngineCoreProc._process_engine_step = step
