// Question: how does Python end the exchanges of this process?
#pragma once

extern "C" {

// Fails whoever waits in a group of GPUs of this process, and forgets all such groups.
__attribute__((visibility("default"))) void MoeprofGpuReset();
}
