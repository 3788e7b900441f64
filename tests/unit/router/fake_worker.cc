#include "tests/unit/router/fake_worker.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace ridge::router {

FakeWorker::FakeWorker(OnExecute on_execute) : on_execute_(std::move(on_execute)) {
  v1::LoadReport report;
  report.set_accepting(true);
  report.set_model("tiny");
  Report(report);
  Listen("127.0.0.1:0");
}

void FakeWorker::Listen(const std::string& address) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<v1::Worker::Service*>(this));
  builder.RegisterService(static_cast<v1::Inference::Service*>(this));
  server_ = builder.BuildAndStart();
  RIDGE_CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

void FakeWorker::Report(const v1::LoadReport& report) {
  absl::MutexLock lock(&mutex_);
  report_ = report;
  ++report_version_;
}

void FakeWorker::FallSilent() {
  absl::MutexLock lock(&mutex_);
  silent_ = true;
}

void FakeWorker::FailUnaryCalls(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  unary_status_ = status;
}

void FakeWorker::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void FakeWorker::Restart() {
  Listen(address_);
}

grpc::Status FakeWorker::Execute(grpc::ServerContext* context, const v1::ExecuteRequest* request,
                                 ExecuteWriter* writer) {
  ++executed_;
  return on_execute_(context, *request, writer);
}

grpc::Status FakeWorker::WatchLoad(grpc::ServerContext* context, const v1::WatchLoadRequest*,
                                   grpc::ServerWriter<v1::LoadReport>* writer) {
  int sent_version = 0;
  absl::Time sent_at;
  while (!context->IsCancelled()) {
    bool send = false;
    v1::LoadReport report;
    {
      absl::MutexLock lock(&mutex_);
      const bool is_due = absl::Now() - sent_at > absl::Milliseconds(200);
      send = !silent_ && (is_due || sent_version != report_version_);
      if (send) sent_at = absl::Now();
      if (send) sent_version = report_version_;
      report = report_;
    }
    if (send) writer->Write(report);
    absl::SleepFor(absl::Milliseconds(2));
  }
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                                  v1::TokenizeResponse* response) {
  ++unary_calls_;
  for (const char c : request->prompt()) response->add_ids(c);
  absl::MutexLock lock(&mutex_);
  return unary_status_;
}

grpc::Status FakeWorker::GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                                  v1::GetModelResponse* response) {
  ++unary_calls_;
  absl::MutexLock lock(&mutex_);
  response->set_name(report_.model());
  return unary_status_;
}

v1::ExecuteResponse TokenMessage(int ordinal) {
  v1::ExecuteResponse message;
  message.mutable_response()->set_sequence_number(ordinal);
  v1::Token* token = message.mutable_response()->add_choices()->add_tokens();
  token->set_id(100 + ordinal);
  token->set_ordinal(ordinal);
  return message;
}

grpc::Status WriteTokens(ExecuteWriter* writer, int count) {
  for (int i = 0; i < count; ++i) writer->Write(TokenMessage(i));
  return grpc::Status::OK;
}

bool WaitForCancellation(grpc::ServerContext* context) {
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (!context->IsCancelled() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(2));
  return context->IsCancelled();
}

}  // namespace ridge::router
