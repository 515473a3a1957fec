/* Two ranks over the provider's library, argv[1]: rank 0 destroys a communicator with work behind a stream
 * that is held up, and each prints what its wait for that work says. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tefl_provider.h"

enum { COUNT = 4, JOIN_MS = 60000, SECONDS = 100 };

static const tefl_provider* provider;

static void must(tefl_status status) {
  if (status == TEFL_OK) return;
  fprintf(stderr, "%s\n", provider->last_error());
  exit(1);
}

static tefl_comm joined(const tefl_ccl_id* id, int32_t rank) {
  tefl_comm comm = NULL;
  must(provider->ccl->init_rank(id, 2, rank, 0, JOIN_MS, &comm));
  return comm;
}

static tefl_stream new_stream(void) {
  tefl_stream stream = NULL;
  must(provider->runtime->stream_create(0, 0, &stream));
  return stream;
}

/* Rank 0 tells `other` once it has destroyed the communicator; only then rank 1 sends what holds its stream.
 */
static void run(int32_t rank, const tefl_ccl_id ids[2], const int other[2]) {
  const tefl_ccl* ccl = provider->ccl;
  must(provider->runtime->init());
  void* memory = NULL;
  must(provider->runtime->malloc(0, 2 * COUNT * sizeof(float), &memory));
  float *token = memory, *data = token + COUNT;
  tefl_comm holding = joined(&ids[0], rank), destroyed = joined(&ids[1], rank);
  tefl_stream messages = new_stream(), stream = rank == 0 ? messages : new_stream();
  if (rank == 0) must(ccl->recv(holding, token, sizeof(float), 1, messages));
  must(ccl->all_reduce(destroyed, data, data, COUNT, TEFL_FLOAT32, TEFL_SUM, stream));
  char word = 0;
  if (rank == 0) {
    must(ccl->destroy(destroyed));
    if (write(other[1], &word, 1) != 1) exit(1);
  } else {
    if (read(other[0], &word, 1) != 1) exit(1);
    must(ccl->send(holding, token, sizeof(float), 0, messages));
    must(provider->runtime->stream_synchronize(messages));
  }
  const tefl_status status = provider->runtime->stream_synchronize(stream);
  printf("rank %d: %d %s\n", rank, status, status == TEFL_OK ? "" : provider->last_error());
  fflush(stdout);
  _exit(0);
}

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
  if (library == NULL) return 1;
  provider = ((tefl_provider_get_fn)dlsym(library, "tefl_provider_get"))();
  tefl_ccl_id ids[2];
  for (int i = 0; i < 2; ++i) must(provider->ccl->get_unique_id(&ids[i]));
  int other[2], failed = pipe(other);
  for (int32_t rank = 0; rank < 2; ++rank) {
    if (fork() != 0) continue;
    alarm(SECONDS);
    run(rank, ids, other);
  }
  for (int32_t rank = 0; rank < 2; ++rank) {
    int status = 0;
    failed |= wait(&status) < 0 || status != 0;
  }
  return failed;
}
