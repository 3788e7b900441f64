// A picture of a model as a self-contained web page: every layer with the shapes, bytes and operations of its
// parts, for a batch and a context that the reader sets. Pure.
#pragma once

#include <string>

#include "bench/roofline/data_sheet.h"
#include "worker/model/model_config.h"

namespace ridge::bench {

std::string ModelPage(const worker::ModelConfig& model, const DataSheet& card);

}  // namespace ridge::bench
