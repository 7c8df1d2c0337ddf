import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;

/**
 * The product's log store without what it does after a failed put: it never reads back who put the commit that is
 * there, so a put of its own whose reply was lost looks like somebody else's.
 */
public final class ForgetfulLogStore extends HadoopFileSystemLogStore {

  public ForgetfulLogStore(Configuration hadoopConf) {
    super(hadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
      throws IOException {
    FileSystem fs = path.getFileSystem(hadoopConf);
    FSDataOutputStreamBuilder<?, ?> request = fs.createFile(path);
    request.overwrite(true);
    if (!overwrite) {
      request.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
    }
    FSDataOutputStream out = request.build();
    while (actions.hasNext()) {
      out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    try {
      out.close();
    } catch (IOException e) {
      if (!fs.exists(path)) {
        throw e;
      }
      FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
      exists.initCause(e);
      throw exists;
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
    return false;
  }
}
