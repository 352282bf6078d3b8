// Graphics cards of makers whose cards nibble does not run on: only to name them to who asked for
// one.
#pragma once

#include <string>

namespace nibble::device {

// "; the card of AMD in it (device 740f) is none that nibble runs on", or "" when there is none.
// Reads sys/bus/pci below `root` ("/" for this machine).
std::string other_cards_clause(const std::string& root);

}  // namespace nibble::device
