// The instruction set that the kernels run on.
#pragma once

#include <string>

namespace ridge::kernels::cpu {

// "AVX2", "AVX3", "NEON", ...; empty where the machine lacks what the kernels need (a fused multiply-add and
// fp16 conversion: AVX2 with F16C on x86).
std::string TargetName();

}  // namespace ridge::kernels::cpu
