#include "router/upstreams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace ridge::router {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr int64_t kMinBackoffNs = 100'000'000;
constexpr int64_t kMaxBackoffNs = 3'000'000'000;
constexpr int kMinReconnectMs = 100;
constexpr int kMaxReconnectMs = 3000;
// Above the minimum interval that the workers' servers allow.
constexpr int kKeepaliveIntervalMs = 15000;
constexpr int kKeepaliveTimeoutMs = 5000;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const UpstreamOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMinReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
  // gRPC's name for the limit of one attempt to connect.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.connect_timeout)));
  // Workers are in reach directly; a proxy of the environment is for the outside.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// One WatchLoad stream.
class Upstream::LoadWatch final : public grpc::ClientReadReactor<v1::LoadReport> {
 public:
  explicit LoadWatch(Upstream* owner) : owner_(owner) {
    context_.set_wait_for_ready(true);
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
  return {up_, report_, in_flight_.load()};
}

void Upstream::Tick() {
  const int64_t now_ns = clock_->NowNs();
  LoadWatch* begun = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (watch_ != nullptr) {
      if (up_ && now_ns - last_report_ns_ > absl::ToInt64Nanoseconds(options_.report_timeout))
        watch_->Cancel();
      return;
    }
    if (watching_ || stopping_ || now_ns < next_watch_ns_) return;
    watch_ = std::make_unique<LoadWatch>(this);
    watching_ = true;
    begun = watch_.get();
  }
  begun->Start();
}

void Upstream::Reported(const v1::LoadReport& report) {
  bool came_up = false;
  {
    absl::MutexLock lock(&mutex_);
    came_up = !std::exchange(up_, true);
    report_ = report;
    last_report_ns_ = clock_->NowNs();
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
  bool went_down = false;
  {
    absl::MutexLock lock(&mutex_);
    ended = std::move(watch_);
    went_down = std::exchange(up_, false);
    report_.Clear();
    next_watch_ns_ = clock_->NowNs() + backoff_ns_;
    backoff_ns_ = std::min(2 * backoff_ns_, kMaxBackoffNs);
  }
  up_metric_.Set(0);
  if (went_down) {
    LogWarning("worker {} is down: {}", address_, status.error_message());
  }
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
    : on_ready_(std::move(on_ready)) {
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
  const bool ready = AnyReady();
  if (std::exchange(last_ready_, ready) != ready) on_ready_(ready);
}

void Upstreams::Watch() {
  do {
    for (const auto& upstream : upstreams_) upstream->Tick();
  } while (!stopped_.WaitForNotificationWithTimeout(kTick));
}

absl::StatusOr<Lease> Upstreams::Acquire(absl::string_view model, const std::vector<const Upstream*>& tried) {
  absl::MutexLock lock(&pick_mutex_);
  std::vector<WorkerLoad> loads;
  for (const auto& upstream : upstreams_) {
    const UpstreamState state = upstream->State();
    WorkerLoad load;
    load.ready = state.up && state.report.accepting();
    load.excluded = std::find(tried.begin(), tried.end(), upstream.get()) != tried.end();
    load.model = state.report.model();
    load.in_flight = state.in_flight;
    load.reported = int64_t{state.report.running_requests()} + state.report.queued_requests();
    loads.push_back(std::move(load));
  }
  const absl::StatusOr<size_t> picked = policy_.Pick(loads, model);
  if (!picked.ok()) return picked.status();
  return Lease(upstreams_[*picked].get());
}

bool Upstreams::AnyReady() const {
  return std::any_of(upstreams_.begin(), upstreams_.end(), [](const auto& upstream) {
    const UpstreamState state = upstream->State();
    return state.up && state.report.accepting();
  });
}

std::string Upstreams::Describe() const {
  std::string text;
  for (const auto& upstream : upstreams_) {
    const UpstreamState state = upstream->State();
    const v1::LoadReport& report = state.report;
    absl::StrAppend(&text, upstream->address(), state.up ? " up" : " down",
                    report.accepting() ? " accepting" : "", " in_flight=", state.in_flight,
                    " running=", report.running_requests(), " queued=", report.queued_requests(),
                    " kv_free_tokens=", report.kv_free_tokens(), "/", report.kv_capacity_tokens(),
                    " model=", report.model(), " numerics_id=", report.numerics_id(), "\n");
  }
  return text;
}

}  // namespace ridge::router
