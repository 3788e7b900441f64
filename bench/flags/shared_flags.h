// Flags that several subcommands of ridge-bench share.
#pragma once

#include <string>

#include "absl/flags/declare.h"

ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, target);
ABSL_DECLARE_FLAG(std::string, source);
ABSL_DECLARE_FLAG(std::string, expect_device);
ABSL_DECLARE_FLAG(std::string, commit);
