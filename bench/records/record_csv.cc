#include "bench/records/record_csv.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "bench/records/csv.h"
#include "bench/records/gzip_file.h"
#include "bench/records/settings_check.h"

namespace ridge::bench {

absl::Status ForEachRecord(const std::string& path, const std::string& header, const RunContext& context,
                           absl::FunctionRef<absl::Status(const CsvRecord& record, bool is_ours)> visit) {
  const absl::StatusOr<std::string> text = ReadGzip(path);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  absl::string_view rest = *text;
  if (!absl::ConsumePrefix(&rest, header)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": its columns are not those of schema ", kRecordSchema));
  }
  absl::string_view header_line = header;
  const std::vector<std::string> names = TakeCsvRecord(&header_line);
  CsvRecord record;
  for (int number = 1; !rest.empty(); ++number) {
    const std::vector<std::string> fields = TakeCsvRecord(&rest);
    if (fields.size() != names.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ", record ", number, ": ", fields.size(), " fields, not ", names.size()));
    }
    for (size_t i = 0; i < fields.size(); ++i) record[names[i]] = fields[i];
    const RecordedOn there{record.at("model"), record.at("device"), record.at("device_name"),
                           record.at("engine_params")};
    absl::Status status = CheckSubject(path, there, context);
    if (status.ok()) status = visit(record, record.at("engine") == context.engine);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
