// RIDGE_CHECK(condition): aborts with file, line and the expression. For invariants only, never for input.
#pragma once

namespace ridge {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

}  // namespace ridge

#define RIDGE_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::ridge::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
