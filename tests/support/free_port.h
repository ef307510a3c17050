// FreePort: where ranks of a test can meet over TCP.
#pragma once

#include <string>

namespace moonshard::test {

// A port on which nobody listens now. It is none of those that the system gives to whoever asks for any, so that what
// other tests open in the meantime does not take it; of many, another one each time.
std::string FreePort();

}  // namespace moonshard::test
