// Question: how does Python end the exchanges of this process, and learn what a GPU reported?
#pragma once

#include <cstdint>

extern "C" {

// Fails whoever waits in a group of GPUs of this process, and forgets all such groups.
__attribute__((visibility("default"))) void MoeprofGpuReset();

// Takes what a dispatch or combine on any device has reported and no handler has returned yet:
// writes the text, cut to `size` bytes with its terminating zero, and returns its length; 0 where
// there is nothing.
__attribute__((visibility("default"))) int MoeprofGpuExchangeFault(char* text, int size);
}
