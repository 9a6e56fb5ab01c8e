// Question: can the kernels of this library run on the GPUs of this machine?
#pragma once

// 1 where there is a GPU and every visible one has compute capability 9.0, the one that the kernels
// are compiled for. Else 0, and `text` (`size` bytes, always terminated) says in one line what was
// found. Makes no CUDA context.
extern "C" __attribute__((visibility("default"))) int MoeprofGpuUsable(char* text, int size);
