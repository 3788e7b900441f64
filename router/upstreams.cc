#include "router/upstreams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_channel.h"
#include "common/logging.h"
#include "common/status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace ridge::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr int64_t kMinBackoffNs = 100'000'000;
constexpr int64_t kMaxBackoffNs = 1'000'000'000;
constexpr int kMinReconnectMs = 100;
constexpr int kMaxReconnectMs = 3000;
// Above the minimum interval that the workers' servers allow.
constexpr int kKeepaliveIntervalMs = 15000;
constexpr int kKeepaliveTimeoutMs = 5000;
// Ours send 1 KiB (status.h); a worker of another version may send more, and beyond this limit its connection
// is closed with every call on it.
constexpr int kMaxMetadataBytes = 1 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const UpstreamOptions& options) {
  grpc::ChannelArguments arguments = DirectChannelArguments();
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  // gRPC's name for the limit of one attempt to connect.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.connect_timeout)));
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::string WatchFailure(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return "it ended its reports";
    case grpc::StatusCode::UNIMPLEMENTED:
      return "it is no ridge-worker: it does not serve ridge.v1.Worker";
    default:
      return Cut(status).error_message();
  }
}

}  // namespace

// One WatchLoad stream.
class Upstream::LoadWatch final : public grpc::ClientReadReactor<v1::LoadReport> {
 public:
  explicit LoadWatch(Upstream* owner) : owner_(owner) {
    owner->worker()->async()->WatchLoad(&context_, &request_, this);
  }

  void Start() {
    StartRead(&report_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    owner_->Reported(report_);
    StartRead(&report_);
  }
  void OnDone(const grpc::Status& status) override {
    owner_->WatchEnded(status);  // deletes this
  }

 private:
  Upstream* const owner_;
  grpc::ClientContext context_;
  v1::WatchLoadRequest request_;
  v1::LoadReport report_;
};

Upstream::Upstream(std::string address, const UpstreamOptions& options, const Clock* clock,
                   RouterMetrics* metrics, std::function<void()> on_change)
    : address_(std::move(address)),
      options_(options),
      clock_(clock),
      on_change_(std::move(on_change)),
      up_metric_(metrics->WorkerUp(address_)),
      generate_metric_(metrics->WorkerRequests(address_)),
      backoff_ns_(kMinBackoffNs) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(address_, options);
  worker_ = v1::Worker::NewStub(channel);
  raw_ = std::make_unique<grpc::GenericStub>(channel);
}

Upstream::~Upstream() {
  Stop();
}

void Upstream::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  if (watch_ != nullptr) watch_->Cancel();
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !watching_; };
  mutex_.Await(absl::Condition(&ended));
}

UpstreamState Upstream::State() const {
  absl::MutexLock lock(&mutex_);
  return {up_, report_, in_flight_.load(), why_down_};
}

void Upstream::Tick() {
  const int64_t now_ns = clock_->NowNs();
  LoadWatch* begun = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (watch_ != nullptr) {
      if (!Silent()) return;
      silent_ = true;
      watch_->Cancel();
      for (UpstreamCall* call : calls_) call->Cancel();
      return;
    }
    if (watching_ || stopping_ || now_ns < next_watch_ns_) return;
    watch_ = std::make_unique<LoadWatch>(this);
    watching_ = true;
    begun = watch_.get();
  }
  begun->Start();
}

bool Upstream::Silent() const {
  return up_ && !silent_ &&
         clock_->NowNs() - last_life_ns_ > absl::ToInt64Nanoseconds(options_.report_timeout);
}

std::string Upstream::SilenceReason() const {
  return absl::StrCat("silent for ", absl::FormatDuration(options_.report_timeout));
}

void Upstream::Opened(UpstreamCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(call);
  if (silent_) call->Cancel();
}

void Upstream::Closed(UpstreamCall* call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

std::string Upstream::LossReason(const grpc::Status& status) const {
  absl::MutexLock lock(&mutex_);
  return silent_ ? SilenceReason() : status.error_message();
}

void Upstream::Reported(const v1::LoadReport& report) {
  bool came_up = false;
  {
    absl::MutexLock lock(&mutex_);
    came_up = !std::exchange(up_, true);
    report_ = report;
    silent_ = false;
    why_down_.clear();
    last_life_ns_ = clock_->NowNs();
    backoff_ns_ = kMinBackoffNs;
  }
  up_metric_.Set(report.accepting() ? 1 : 0);
  if (came_up) {
    LogInfo("worker {} is up: model {}, numerics id {}", address_, report.model(), report.numerics_id());
  }
  on_change_();
}

void Upstream::WatchEnded(const grpc::Status& status) {
  std::unique_ptr<LoadWatch> ended;
  std::string news;  // why the worker is down, where that is not known yet
  {
    absl::MutexLock lock(&mutex_);
    ended = std::move(watch_);
    const bool went_down = std::exchange(up_, false);
    const std::string reason = silent_ ? SilenceReason() : WatchFailure(status);
    // Once; the next attempts may fail for many reasons.
    if (!stopping_ && (went_down || why_down_.empty())) news = reason;
    why_down_ = reason;
    report_.Clear();
    next_watch_ns_ = clock_->NowNs() + backoff_ns_;
    backoff_ns_ = std::min(2 * backoff_ns_, kMaxBackoffNs);
  }
  up_metric_.Set(0);
  if (!news.empty()) LogWarning("worker {} is down: {}", address_, news);
  on_change_();
  // It holds the channel, whose last owner must not be one of gRPC's threads: they cannot wait for
  // themselves.
  ended.reset();
  absl::MutexLock lock(&mutex_);
  watching_ = false;  // last: from here on the destructor may finish
}

Lease::Lease(Upstream* upstream) : upstream_(upstream) {
  ++upstream_->in_flight_;
}

Lease& Lease::operator=(Lease&& other) noexcept {
  std::swap(upstream_, other.upstream_);
  return *this;
}

Lease::~Lease() {
  if (upstream_ != nullptr) --upstream_->in_flight_;
}

Upstreams::Upstreams(const std::vector<std::string>& addresses, const UpstreamOptions& options,
                     const Clock* clock, RouterMetrics* metrics, std::function<void(bool)> on_ready)
    : on_ready_(std::move(on_ready)), last_differs_(addresses.size(), false) {
  for (const std::string& address : addresses) {
    upstreams_.push_back(std::make_unique<Upstream>(address, options, clock, metrics, [this] { Notify(); }));
  }
  thread_ = std::thread([this] { Watch(); });
}

Upstreams::~Upstreams() {
  stopped_.Notify();
  thread_.join();
  // All of them before the first is destroyed: Notify looks at every one.
  for (const auto& upstream : upstreams_) upstream->Stop();
}

void Upstreams::Notify() {
  absl::MutexLock lock(&notify_mutex_);
  const std::vector<WorkerLoad> loads = Loads();
  const std::vector<bool> differs = Differing(loads);
  for (size_t i = 0; i < loads.size(); ++i) {
    if (differs[i] && !last_differs_[i]) {
      LogWarning(
          "worker {} gets no requests: its numerics id {} and context {} are not those of the workers in use "
          "with model {}, the most that agree or the first in --workers",
          upstreams_[i]->address(), loads[i].numerics_id, loads[i].context_length, loads[i].model);
    }
  }
  last_differs_ = differs;
  const bool ready =
      std::any_of(loads.begin(), loads.end(), [](const WorkerLoad& load) { return load.ready; });
  if (std::exchange(last_ready_, ready) != ready) on_ready_(ready);
}

void Upstreams::Watch() {
  do {
    for (const auto& upstream : upstreams_) upstream->Tick();
  } while (!stopped_.WaitForNotificationWithTimeout(kTick));
}

std::vector<WorkerLoad> Upstreams::Loads() const {
  std::vector<WorkerLoad> loads;
  for (const auto& upstream : upstreams_) {
    const UpstreamState state = upstream->State();
    WorkerLoad load;
    load.ready = state.up && state.report.accepting();
    load.model = state.report.model();
    load.numerics_id = state.report.numerics_id();
    load.context_length = state.report.context_length();
    load.in_flight = state.in_flight;
    load.queue_room = state.report.queue_room();
    load.kv_tokens = state.report.kv_capacity_tokens();
    load.reported = int64_t{state.report.running_requests()} + state.report.queued_requests();
    loads.push_back(std::move(load));
  }
  return loads;
}

absl::StatusOr<Lease> Upstreams::Acquire(absl::string_view model, const std::vector<const Upstream*>& tried,
                                         const Need& need) {
  absl::MutexLock lock(&pick_mutex_);
  std::vector<WorkerLoad> loads = Loads();
  for (size_t i = 0; i < loads.size(); ++i) {
    loads[i].excluded = std::find(tried.begin(), tried.end(), upstreams_[i].get()) != tried.end() ||
                        (need.queue_room && loads[i].queue_room == 0) ||
                        (need.more_kv_tokens_than > 0 && loads[i].kv_tokens <= need.more_kv_tokens_than);
  }
  const absl::StatusOr<size_t> picked = policy_.Pick(loads, model);
  if (!picked.ok()) return picked.status();
  return Lease(upstreams_[*picked].get());
}

std::string Upstreams::Describe() const {
  const std::vector<bool> differs = Differing(Loads());
  std::string text;
  for (size_t i = 0; i < upstreams_.size(); ++i) {
    const UpstreamState state = upstreams_[i]->State();
    const v1::LoadReport& report = state.report;
    absl::StrAppend(&text, upstreams_[i]->address(), " in_flight=", state.in_flight);
    if (!state.up) {
      absl::StrAppend(&text, " down", state.why_down.empty() ? "" : ": ", state.why_down, "\n");
      continue;
    }
    absl::StrAppend(&text, " up", report.accepting() ? " accepting" : "", differs[i] ? " differing" : "",
                    " running=", report.running_requests(), " queued=", report.queued_requests(),
                    " kv_free_tokens=", report.kv_free_tokens(), "/", report.kv_capacity_tokens(),
                    " model=", report.model(), " context=", report.context_length(),
                    " numerics_id=", report.numerics_id(), "\n");
  }
  return text;
}

}  // namespace ridge::router
