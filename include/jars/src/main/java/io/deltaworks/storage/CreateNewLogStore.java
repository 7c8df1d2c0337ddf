package io.deltaworks.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;

/**
 * Delta's log store for {@code file}: a commit is a hard link from a finished file, so writers in any number of
 * processes exclude each other and none ever leaves a torn commit.
 *
 * <p>The kernel refuses to link onto a name that exists. Delta's default checks and then renames, which excludes
 * writers within one JVM only. A writer killed half-way leaves a hidden temporary file that every reader ignores.
 *
 * <p>Set {@code spark.delta.logStore.file.impl} to this class.
 */
public final class CreateNewLogStore extends HadoopFileSystemLogStore {

  public CreateNewLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  @Override
  public void write(
      org.apache.hadoop.fs.Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    Path target = Paths.get(path.toUri().getPath());
    Path finished = Paths.get(createTempPath(path).toUri().getPath());
    Files.createDirectories(target.getParent());
    try {
      writeDurably(finished, ConditionalPutLogStore.linesOf(actions));
      // Hadoop's local file system checks a file against its checksum file, which would now be another file's.
      Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
      if (overwrite) {
        Files.move(finished, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      } else {
        Files.createLink(target, finished);
      }
      syncDirectory(target.getParent());
    } finally {
      Files.deleteIfExists(finished);
    }
  }

  /** Links and renames are atomic: a file appears with its whole content or not at all. */
  @Override
  public Boolean isPartialWriteVisible(org.apache.hadoop.fs.Path path, Configuration hadoopConf) {
    return false;
  }

  private static void writeDurably(Path path, byte[] content) throws IOException {
    try (FileChannel channel =
        FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      ByteBuffer left = ByteBuffer.wrap(content);
      while (left.hasRemaining()) {
        channel.write(left);
      }
      channel.force(true);
    }
  }

  /** A new name survives a power cut only once its directory is on disk. */
  private static void syncDirectory(Path directory) throws IOException {
    try (FileChannel channel = FileChannel.open(directory, StandardOpenOption.READ)) {
      channel.force(true);
    }
  }
}
