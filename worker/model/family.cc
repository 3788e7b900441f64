#include "worker/model/family.h"

#include "absl/strings/str_cat.h"
#include "worker/model/families/llama.h"
#include "worker/model/families/qwen2.h"
#include "worker/model/families/qwen3.h"

namespace ridge::worker {
namespace {

constexpr const ModelFamily* kFamilies[] = {&kLlama, &kQwen2, &kQwen3};

}  // namespace

absl::Span<const ModelFamily* const> ModelFamilies() {
  return kFamilies;
}

const ModelFamily* FindFamily(absl::string_view name) {
  for (const ModelFamily* family : kFamilies) {
    if (family->name == name) return family;
  }
  return nullptr;
}

std::string FamilyNames() {
  std::string names;
  for (const ModelFamily* family : kFamilies) {
    const char* separator = family == kFamilies[0]                 ? ""
                            : family == *(std::end(kFamilies) - 1) ? " and "
                                                                   : ", ";
    absl::StrAppend(&names, separator, family->name);
  }
  return names;
}

}  // namespace ridge::worker
