#include "worker/model/checkpoint_files.h"

#include <filesystem>

#include "absl/container/btree_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/model/json_keys.h"

namespace ridge::worker {
namespace {

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMaxShards = 1024;

std::string Printable(absl::string_view name) {
  return absl::CHexEscape(name.substr(0, 80));
}

// A file of the directory itself: no way out of it, no hidden file.
bool IsPlainFileName(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") && !absl::StartsWith(name, ".") &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

// The shard of each tensor.
absl::StatusOr<absl::btree_map<std::string, std::string>> ReadIndex(const std::string& path) {
  absl::StatusOr<nlohmann::json> index = ReadJsonObject(path);
  if (!index.ok()) return index.status();
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map: ", what));
  };
  const auto weight_map = index->find("weight_map");
  if (weight_map == index->end() || !weight_map->is_object()) return error("an object is needed");
  absl::btree_map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return error(absl::StrCat(Printable(tensor), ": not the name of a .safetensors file beside the index"));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

absl::Status AddShard(const std::string& path, CheckpointFiles& checkpoint) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  for (const auto& [name, tensor] : (*file)->tensors()) {
    const auto [it, is_new] = checkpoint.tensors.emplace(name, tensor);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s: also in %s", path, Printable(name), it->second.file->path()));
    }
  }
  checkpoint.files.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFiles> OpenShards(const std::filesystem::path& directory) {
  CheckpointFiles checkpoint;
  checkpoint.path = directory / kIndex;
  absl::StatusOr<absl::btree_map<std::string, std::string>> index = ReadIndex(checkpoint.path);
  if (!index.ok()) return index.status();
  absl::btree_set<std::string> shards;
  for (const auto& [tensor, shard] : *index) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.path, ": weight_map: ", shards.size(), " files: more than ", kMaxShards));
  }
  for (const std::string& shard : shards) {
    if (absl::Status status = AddShard(directory / shard, checkpoint); !status.ok()) return status;
  }
  for (const auto& [name, shard] : *index) {
    const StoredTensor* tensor = FindTensor(checkpoint.tensors, name);
    const std::string path = directory / shard;
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s: missing, though %s gives it", path, Printable(name), kIndex));
    }
    if (tensor->file->path() != path) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: weight_map: %s: %s is given, but it is in %s",
                                                        checkpoint.path, Printable(name), shard,
                                                        tensor->file->path()));
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (index->contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: not in the weight_map of %s",
                                                      tensor.file->path(), Printable(name), kIndex));
  }
  return checkpoint;
}

}  // namespace

absl::StatusOr<CheckpointFiles> OpenCheckpointFiles(const std::string& directory) {
  const std::filesystem::path root(directory);
  std::error_code ignored;
  if (!std::filesystem::exists(root / kSingle, ignored) && std::filesystem::exists(root / kIndex, ignored)) {
    return OpenShards(root);
  }
  CheckpointFiles checkpoint;
  checkpoint.path = root / kSingle;
  if (absl::Status status = AddShard(checkpoint.path, checkpoint); !status.ok()) return status;
  return checkpoint;
}

}  // namespace ridge::worker
