#include "bench/records/run_record.h"

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "bench/records/arrival_record.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

RunContext SomeContext() {
  return {.bench_id = "7953dc6e",
          .version = "0.1.0",
          .commit = "abc",
          .engine = "cached",
          .engine_params = R"({"attention": "split"})",
          .model = "synthetic:qwen2.5-1.5b",
          .dtype = "float16",
          .device = "cuda",
          .device_name = "NVIDIA A10",
          .load_s = 3.5245};
}

RunRecord SomeRecord() {
  RunRecord record;
  record.run_index = -1;
  record.ts_utc = "2026-08-09T22:46:38+00:00";
  record.workload = "p16-x1";
  record.prompt_label = "p16";
  record.prompt_tokens = 16;
  record.max_new_tokens = 4;
  record.batch_id = "b0";
  record.stopped_reason = "length";
  record.token_s = {0.020, 0.030, 0.0405, 0.060};
  record.ids = {5, 6, 7, 8};
  record.text = "a, \"b\"";
  record.total_s = 0.070;
  return record;
}

TEST(FiguresOf, FollowTheDefinitionsOfTheSeries) {
  const RunFigures figures = FiguresOf(SomeRecord());
  EXPECT_DOUBLE_EQ(figures.ttft_s, 0.020);
  EXPECT_DOUBLE_EQ(figures.decode_s, 0.050);
  EXPECT_DOUBLE_EQ(figures.decode_tps, 3 / 0.050);
  EXPECT_DOUBLE_EQ(figures.e2e_tps, 4 / 0.070);
  EXPECT_NEAR(figures.itl_p50_ms, 10.5, 1e-9);  // of 10, 10.5 and 19.5
  EXPECT_NEAR(figures.itl_p95_ms, 19.5, 1e-9);
}

TEST(FiguresOf, OneTokenHasNoRateOfDecoding) {
  RunRecord record = SomeRecord();
  record.token_s = {0.02};
  record.total_s = 0.02;
  EXPECT_EQ(FiguresOf(record).decode_tps, 0);
  EXPECT_EQ(FiguresOf(record).itl_p95_ms, 0);
  record.token_s.clear();
  EXPECT_EQ(FiguresOf(record).ttft_s, 0);
}

TEST(RunCsvLine, HasAValueForEveryColumn) {
  EXPECT_EQ(RunCsvHeader(),
            "schema,bench_id,run_index,is_warmup,ts_utc,ridge_version,commit,engine,engine_params,model,"
            "dtype,device,"
            "device_name,load_s,workload,prompt_label,prompt_tokens,max_new_tokens,batch_size,batch_id,"
            "sequence_index,"
            "temperature,top_k,top_p,min_p,seed,stop_on_eos,completion_tokens,stopped_reason,ttft_s,total_s,"
            "decode_s,"
            "decode_tps,e2e_tps,itl_p50_ms,itl_p95_ms,peak_mem_bytes,peak_mem_source,output_sha8,notes\n");
  EXPECT_EQ(
      RunCsvLine(SomeContext(), SomeRecord()),
      "1,7953dc6e,-1,True,2026-08-09T22:46:38+00:00,0.1.0,abc,cached,\"{\"\"attention\"\": \"\"split\"\"}\","
      "synthetic:qwen2.5-1.5b,float16,cuda,NVIDIA "
      "A10,3.5245,p16-x1,p16,16,4,1,b0,0,,,,,0,False,4,length,0.02,0.07,"
      "0.05,60.0,57.1429,10.5,19.5,,,91c38c12,\n");
}

TEST(RunJsonLine, CarriesTimesTextAndIdsOnDemand) {
  const nlohmann::json with = nlohmann::json::parse(RunJsonLine(SomeContext(), SomeRecord(), true));
  EXPECT_EQ(with["token_gaps_us"], nlohmann::json({20'000, 10'000, 10'500, 19'500}));
  EXPECT_EQ(with["token_ids"], nlohmann::json({5, 6, 7, 8}));
  EXPECT_EQ(with["text"], "a, \"b\"");
  EXPECT_EQ(with["is_warmup"], true);
  EXPECT_TRUE(with["temperature"].is_null());
  const nlohmann::json without = nlohmann::json::parse(RunJsonLine(SomeContext(), SomeRecord(), false));
  EXPECT_FALSE(without.contains("token_ids"));
  EXPECT_EQ(without["output_sha8"], with["output_sha8"]);
}

TEST(ArrivalCsvLine, CountsFromTheScheduledArrival) {
  ArrivalRecord record;
  record.sweep_id = "s";
  record.rate = 2.5;
  record.max_batch = 32;
  record.requests = 400;
  record.prompt_label = "p64";
  record.prompt_tokens = 64;
  record.budget = 128;
  record.completion_tokens = 128;
  record.arrival_s = 10;
  record.start_s = 10.25;
  record.first_token_s = 10.5;
  record.end_s = 13;
  record.end = "length";
  EXPECT_EQ(ArrivalCsvHeader(),
            "schema,bench_id,sweep_id,ridge_version,commit,engine,engine_params,model,dtype,device,device_"
            "name,rate,"
            "last_rate,in_flight,max_batch,seed,requests,unserved,late,prompt_label,prompt_tokens,budget,"
            "completion_tokens,"
            "arrival_s,start_s,"
            "queue_s,ttft_s,latency_s,end\n");
  EXPECT_EQ(
      ArrivalCsvLine(SomeContext(), record),
      "1,7953dc6e,s,0.1.0,abc,cached,\"{\"\"attention\"\": "
      "\"\"split\"\"}\",synthetic:qwen2.5-1.5b,float16,cuda,"
      "NVIDIA "
      "A10,2.5,0,0,32,0,400,0,0,p64,64,128,128,10.000000,10.250000,0.250000,0.500000,3.000000,length\n");
}

TEST(ArrivalCsvLine, LeavesOutWhatNeverHappened) {
  ArrivalRecord record;
  record.start_s = -1;
  record.end = "RESOURCE_EXHAUSTED";
  EXPECT_TRUE(absl::EndsWith(ArrivalCsvLine({}, record), ",0,0.000000,,,,,RESOURCE_EXHAUSTED\n"));
}

}  // namespace
}  // namespace ridge::bench
