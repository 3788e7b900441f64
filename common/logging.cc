#include "common/logging.h"

#include <memory>

#include "absl/strings/str_format.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace ridge {
namespace {

// Control characters, of ASCII and of Latin-1 in UTF-8: what could begin a line or move a cursor.
std::string EscapeControls(absl::string_view text) {
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (byte == '\n') {
      escaped += "\\n";
    } else if (byte < 0x20 || byte == 0x7F || is_c1) {
      absl::StrAppendFormat(&escaped, "\\x%02x", byte);
      if (is_c1) absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<unsigned char>(text[++i]));
    } else {
      escaped += text[i];
    }
  }
  return escaped;
}

// The text of a line, for patterns as "%*". Whatever a client or a file put into it, it stays one line.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = EscapeControls({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<EscapedText>(); }
};

}  // namespace

bool InitLogging(absl::string_view program, absl::string_view level) {
  spdlog::level::level_enum parsed;
  if (level == "debug") {
    parsed = spdlog::level::debug;
  } else if (level == "info") {
    parsed = spdlog::level::info;
  } else if (level == "warning") {
    parsed = spdlog::level::warn;
  } else if (level == "error") {
    parsed = spdlog::level::err;
  } else {
    return false;
  }
  auto logger = spdlog::stderr_logger_mt(std::string(program));
  logger->set_level(parsed);
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<EscapedText>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %n: %*");
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  // What matters to an operator comes back as a status and is logged by us, once and in one line.
  gpr_set_log_function([](gpr_log_func_args* line) { LogDebug("grpc: {}", line->message); });
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*, int,
                                     const std::string& message) { LogDebug("protobuf: {}", message); });
  return true;
}

}  // namespace ridge
