#include "bench/ask.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/records/latency.h"
#include "common/clock.h"
#include "common/grpc_channel.h"
#include "common/status.h"
#include "grpcpp/create_channel.h"

namespace ridge::bench {
namespace {

std::string FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CONTEXT:
      return "context";
    default:
      return "unknown";
  }
}

// `shared`: tokens that came in one message with the token before, which makes a gap of 0 each.
std::string Figures(const StreamLatency& latency, int shared, const v1::Summary& summary) {
  std::string line = absl::StrFormat("%d prompt + %d completion tokens, finish: %s, TTFT %.1f ms",
                                     summary.usage().prompt_tokens(), summary.usage().completion_tokens(),
                                     FinishName(summary.choices(0).finish_reason()), latency.ttft_ms);
  if (!latency.itl_ms.empty()) {
    absl::StrAppendFormat(&line, ", ITL p50 %.1f / p95 %.1f ms, %.1f tokens/s",
                          Percentile(latency.itl_ms, 50), Percentile(latency.itl_ms, 95),
                          latency.tokens_per_second);
    if (shared > 0) {
      absl::StrAppendFormat(&line, "; %d of %d tokens shared the message of the one before, an ITL of 0",
                            shared, latency.itl_ms.size() + 1);
    }
  }
  absl::StrAppendFormat(&line, ", seed %d, model %s", summary.seed(), summary.model());
  return line;
}

}  // namespace

absl::Status Ask(const AskConfig& config, std::ostream& text, std::ostream& figures) {
  const auto stub = v1::Inference::NewStub(
      grpc::CreateCustomChannel(config.target, grpc::InsecureChannelCredentials(), DirectChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + config.timeout));
  const int64_t sent_ns = RealClock()->NowNs();
  const auto stream = stub->Generate(&context, config.request);

  std::vector<double> token_ms;
  v1::GenerateResponse message;
  v1::Summary summary;
  bool complete = false;
  int shared = 0;
  while (stream->Read(&message)) {
    const double now_ms = static_cast<double>(RealClock()->NowNs() - sent_ns) * 1e-6;
    for (const v1::ChoiceTokens& choice : message.choices()) {
      shared += std::max(0, choice.tokens_size() - 1);
      for (const v1::Token& token : choice.tokens()) {
        token_ms.push_back(now_ms);
        // Without a tokenizer there are no bytes either.
        if (token.bytes().empty()) {
          text << token.id() << ' ';
        } else {
          text << token.text();
        }
      }
    }
    text.flush();
    if (message.has_summary()) {
      summary = message.summary();
      complete = true;
    }
  }
  const absl::Status status = FromGrpc(stream->Finish());
  if (status.ok() || !token_ms.empty()) text << std::endl;
  if (absl::IsUnavailable(status) && token_ms.empty())
    return absl::UnavailableError(absl::StrCat("--target: ", config.target, ": ", status.message()));
  if (!status.ok()) return status;
  if (!complete || summary.choices_size() == 0)
    return absl::InternalError("the stream ended without a summary");
  if (!text.good()) return absl::DataLossError("the answer could not be written to the output");
  figures << Figures(Measure(token_ms), shared, summary) << std::endl;
  return absl::OkStatus();
}

}  // namespace ridge::bench
