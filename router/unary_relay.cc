#include "router/unary_relay.h"

#include <utility>

namespace ridge::router {

class UnaryRelay::Call final : public Attempt {
 public:
  Call(UnaryRelay* relay, Lease lease) : Attempt(std::move(lease), relay->client()), relay_(relay) {}

  void Start() override {
    lease().upstream()->raw()->UnaryCall(
        context(), relay_->method_, grpc::StubOptions(), &relay_->request_, relay_->response_,
        [relay = relay_](grpc::Status status) { relay->AttemptEnded(status); });
  }

 private:
  UnaryRelay* const relay_;
};

UnaryRelay::UnaryRelay(Upstreams* upstreams, grpc::CallbackServerContext* context, std::string method,
                       grpc::ByteBuffer* response)
    : Relay(upstreams, context), method_(std::move(method)), response_(response) {}

void UnaryRelay::Start(const grpc::ByteBuffer& request, const std::string& model) {
  request_ = request;
  StartRelay(model);
}

std::unique_ptr<Attempt> UnaryRelay::NewAttempt(Lease lease) {
  return std::make_unique<Call>(this, std::move(lease));
}

}  // namespace ridge::router
